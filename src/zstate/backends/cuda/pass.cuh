// The pass of this specialisation's cell, whichever way over the chip it goes.
#pragma once

using Pass = Select<kBackward, backward::Pass<Cell>, forward::Pass<Cell>>::type;

// The turn of a thread's p-th item; `carried` is what the thread carries through the sequence.
template <class Carried, class HandOn>
ZS_DEVICE Turn<HandOn> turn_of(const Block& block, const Item& item, Carried& carried, int p, const HandOn& hand_on) {
  return {block.a, item, carried.constants[p], block.state(), carried.sums[p], hand_on};
}
