// Reads a cell's tables, and checks every number that is used as an index.
#include "runtime/cell_tables.h"

#include <stdexcept>
#include <string>

#include "engine/opcodes.h"

namespace zstate {
namespace {

using i64 = std::int64_t;

[[noreturn]] void refuse(const char* what) {
  throw std::invalid_argument(std::string("the tables of a cell: ") + what);
}

constexpr int kValues[] = {
#define ZS_NAME(name, values) values,
    ZS_OPCODES(ZS_NAME)
#undef ZS_NAME
};

}  // namespace

struct CellTables::Reader {
  const i64* at;
  const i64* end;
  const double* numbers;
  std::size_t number_count;

  // The next one, which lies in [least, most].
  int next(i64 least, i64 most) {
    if (at == end) refuse("too few numbers");
    if (*at < least || *at > most) refuse("a number out of range");
    return static_cast<int>(*at++);
  }
};

CellTables::CellTables(const i64* words, std::size_t word_count, const double* numbers,
                       std::size_t number_count) {
  Reader reader{words, words + word_count, numbers, number_count};
  read(reader);
  if (reader.at != reader.end) refuse("too many numbers");
}

// Places by kind: how many of each there are, in this cell.
namespace {
int most_of(PlaceKind kind, const CellProgram& cell) {
  switch (kind) {
    case PlaceKind::x:
    case PlaceKind::bias:
    case PlaceKind::saved:
    case PlaceKind::saved_before:
    case PlaceKind::gate_gradient:
      return cell.gates;
    case PlaceKind::own:
    case PlaceKind::own_sum:
      return cell.own;
    case PlaceKind::product:
      return kMostProducts;
    case PlaceKind::mask:
    case PlaceKind::next_mask:
    case PlaceKind::reset:
    case PlaceKind::next_reset:
      return 1;
    case PlaceKind::carried:
      return cell.carried;
    case PlaceKind::reduced:
      return cell.reduced;
    case PlaceKind::mean:
      return cell.means;
    case PlaceKind::operand:
    case PlaceKind::operand_value:
      return cell.operand_count;
    case PlaceKind::extra:
      return cell.extra;
    default:
      return cell.states;
  }
}
}  // namespace

const Program* CellTables::read_program(Reader& in) {
  const int places = in.next(-1, kMostPlaces);
  if (places < 0) return nullptr;
  Text& text = texts_.emplace_back();
  for (int i = 0; i < places; ++i) {
    Place place{};
    place.kind = in.next(0, static_cast<int>(PlaceKind::count) - 1);
    place.index = in.next(0, most_of(static_cast<PlaceKind>(place.kind), cell_) - 1);
    place.read = in.next(0, 1) != 0;
    text.places.push_back(place);
  }
  const int numbers = in.next(0, kMostPlaces);
  for (int i = 0; i < numbers; ++i) {
    const int which = in.next(0, static_cast<i64>(in.number_count) - 1);
    Number number;
    for (float& each : number.single) each = static_cast<float>(in.numbers[which]);
    for (double& each : number.twice) each = in.numbers[which];
    text.numbers.push_back(number);
  }
  const int temporary = in.next(0, kMostPlaces), values = places + numbers + temporary;
  if (values > kMostPlaces) refuse("too many values");
  const auto written = [&](int value) { return value < places || value >= places + numbers; };
  const int code = in.next(0, in.end - in.at), core = in.next(0, code);
  constexpr Instruction end{};
  static_assert(end.op == static_cast<int>(Opcode::end));
  for (int i = 0; i < code; ++i) {
    if (i == core) text.code.push_back(end);
    Instruction instruction{};
    instruction.op = in.next(1, static_cast<int>(Opcode::count) - 1);
    instruction.out = in.next(0, values - 1);
    if (!written(instruction.out)) refuse("a number is written");
    instruction.a = instruction.b = instruction.c = instruction.d = in.next(0, values - 1);
    if (kValues[instruction.op] > 1) instruction.b = in.next(0, values - 1);
    if (kValues[instruction.op] > 2) instruction.c = in.next(0, values - 1);
    if (kValues[instruction.op] > 3) instruction.d = in.next(0, values - 1);
    text.code.push_back(instruction);
  }
  text.code.push_back(end);
  if (core == code) text.code.push_back(end);
  const int outputs = in.next(0, kMostPlaces);
  for (int i = 0; i < outputs; ++i) {
    Output output{};
    output.place = in.next(0, places - 1);
    output.value = in.next(0, values - 1);
    text.outputs.push_back(output);
  }
  Program& program = text.program;
  program = {text.places.data(),
             text.numbers.data(),
             text.code.data(),
             text.code.data() + core + 1,
             text.outputs.data(),
             places,
             numbers,
             temporary,
             outputs,
             in.next(0, outputs)};
  return &program;
}

void CellTables::read_stage(Reader& in, CellStage& stage, int first_mean) {
  stage.first_mean = first_mean;
  stage.mean_count = in.next(0, cell_.means - first_mean);
  for (int k = 0; k < stage.mean_count; ++k) {
    Reduction& one = cell_.reductions[first_mean + k];
    one.is_variance = in.next(0, 1) != 0;
    one.first = in.next(0, cell_.reduced - 1);
    one.count = in.next(1, cell_.reduced - one.first);
  }
  const int count = in.next(0, kMostProducts);
  std::vector<GateProduct>& products = products_.emplace_back();
  int gates = 0;
  for (int i = 0; i < count; ++i) {
    GateProduct product{};
    product.operand = in.next(0, cell_.operand_count - 1);
    product.gate_count = in.next(1, cell_.gates);
    gates += product.gate_count;
    for (int k = 0; k < product.gate_count; ++k) {
      product.gates[k] = in.next(0, cell_.gates - 1);
      product.extra[k] = in.next(-1, cell_.extra - 1);
    }
    products.push_back(product);
  }
  if (gates > kMostProducts) refuse("too many products");
  stage.products = products.data();
  stage.product_count = count;
  for (const Program*& program : stage.programs) program = read_program(in);
}

std::vector<GateOperand>& CellTables::read_pairs(Reader& in) {
  std::vector<GateOperand>& pairs = pairs_.emplace_back();
  const int count = in.next(0, kMostProducts);
  for (int i = 0; i < count; ++i) {
    GateOperand pair{};
    pair.gate = in.next(0, cell_.gates - 1);
    pair.operand = in.next(0, cell_.operand_count - 1);
    pair.extra = in.next(-1, cell_.extra - 1);
    pairs.push_back(pair);
  }
  return pairs;
}

// In the order of encoding.py's Encoded.words().
void CellTables::read(Reader& in) {
  if (in.next(0, 1000) != static_cast<int>(Opcode::count)) refuse("written for other instructions");
  gradient_ = in.next(0, 1) != 0;
  cell_.gates = in.next(1, kMostGates);
  bool seen[kMostGates] = {};
  for (int g = 0; g < cell_.gates; ++g) {
    cell_.slots[g] = in.next(0, cell_.gates - 1);
    if (seen[cell_.slots[g]]) refuse("two gates in one place");
    seen[cell_.slots[g]] = true;
  }
  cell_.states = in.next(1, kMostStates);
  cell_.own_arrays = in.next(0, kMostOwn);
  cell_.own = in.next(0, cell_.own_arrays * cell_.gates);
  for (int k = 0; k < cell_.own; ++k) {
    cell_.own_array[k] = in.next(0, cell_.own_arrays - 1);
    cell_.own_gate[k] = in.next(-1, cell_.gates - 1);
  }
  for (int s = 0; s < cell_.states; ++s) cell_.keeps[s] = in.next(0, 1) != 0;
  for (int g = 0; g < cell_.gates; ++g) cell_.has_x[g] = in.next(0, 1) != 0;
  cell_.saves_last = in.next(0, 1) != 0;
  cell_.carried = in.next(0, kMostPlaces);
  cell_.means = in.next(0, kMostPlaces);
  cell_.reduced = in.next(0, kMostPlaces);
  cell_.extra = in.next(0, kMostProducts);
  cell_.operand_count = in.next(0, kMostOperands);
  for (int k = 0; k < cell_.operand_count; ++k) {
    CellOperand& operand = cell_.operands[k];
    operand.two_steps = in.next(0, 1) != 0;
    operand.state = in.next(-1, cell_.states - 1);
    operand.vanishes = in.next(0, 1) != 0;
    for (const Program*& program : operand.programs) program = read_program(in);
    if (gradient_ && operand.state < 0 && !(operand.programs[0] && operand.programs[1]))
      refuse("an operand without its program");
  }
  cell_.stage_count = in.next(1, kMostStages);
  for (int i = 0, means = 0; i < cell_.stage_count; ++i) {
    CellStage& stage = cell_.stages[i];
    read_stage(in, stage, means);
    means += stage.mean_count;
    int values = 0;
    for (int k = 0; k < stage.product_count; ++k) values += gradient_ ? 1 : stage.products[k].gate_count;
    for (int k = 0; k < (gradient_ ? i ? 2 : 4 : 1); ++k)
      if (!stage.programs[k]) refuse("a stage without its program");
    for (const Program* program : stage.programs)
      for (int k = 0; program && k < program->place_count; ++k)
        if (program->places[k].kind == static_cast<int>(PlaceKind::product) &&
            program->places[k].index >= values)
          refuse("a product that is not there");
  }
  cell_.first = read_program(in);
  cell_.end = read_program(in);
  if (gradient_ ? !cell_.end : !cell_.first) refuse("no program for the ends");
  const auto& again = read_pairs(in);
  cell_.recomputed = again.data(), cell_.recomputed_count = static_cast<int>(again.size());
  const auto& factors = read_pairs(in);
  cell_.factors = factors.data(), cell_.factor_count = static_cast<int>(factors.size());
  for (const GateOperand& each : again)
    if (each.extra < 0) refuse("a product without its place");
}

}  // namespace zstate
