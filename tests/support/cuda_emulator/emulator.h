// CUDA kernels on the CPU: the .cu files of cuda/, translated by translate.py, run here. What a GPU
// may do in any order the emulator does in a bad one, and what is undefined on a GPU is an error:
//  - each thread is a fiber. Threads of up to two blocks take turns at barriers, warp operations
//    and atomics, in an order that follows from the seed.
//  - shared memory is fresh for each block and begins with unwritten bytes.
//  - a barrier that some threads of a block do not reach, a warp operation whose lanes name
//    different masks, a launch beyond the limits, vectors and atomics that are misaligned or
//    outside an allocation, a write into the bytes around an allocation: the message names kernel,
//    block and thread.
// A write is seen at once by all threads, and an update of memory is never cut in two.
// Streams do nothing later: a launch has run when it returns, unless the stream captures. So the
// order of streams is not tested here; fake_cuda does that, with kernels that are their host
// bodies. An error of a kernel is sticky, as on a GPU.
#pragma once

#include <cstdint>
#include <string>

namespace eplb::cuda_emulator {

inline constexpr int kNumSeeds = 4;
inline constexpr int32_t kMultiprocessors = 4;

// Sets the seed of all later launches. Warps run in random order, or one starves while another can
// run, or in the order of a fixed priority, each to its next barrier: which of them is seed % 3.
void SetSeed(uint64_t seed);

// The sticky error's message, "" without one.
std::string Report();
// Clears errors, as in a new process. Allocations stay.
void Reset();

}  // namespace eplb::cuda_emulator
