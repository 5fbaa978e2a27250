// Behind graph.cu: the kernel for random numbers, block by block.
extern "C" void run_uniform(const i64* words, int blocks) {
  const Uniform p = same_bits<Uniform>(*(const Uniform*)words);
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < kThreads; ++threadIdx.x) uniform(p);
}
