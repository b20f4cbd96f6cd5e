#include "tests/cuda/emulated_language.h"

namespace eplb::cuda::testing {
namespace {

__global__ void LanesKernel(const int32_t* values, LaneResults* results) {
  const int lane = static_cast<int>(threadIdx.x);
  const unsigned half = lane < 16 ? 0x0000ffff : 0xffff0000;
  const int32_t value = values[lane];
  const auto bits = static_cast<unsigned>(value);
  results->sums[lane] = __reduce_add_sync(half, value);
  results->least[lane] = __reduce_min_sync(half, value);
  results->largest[lane] = __reduce_max_sync(half, bits);
  results->bits_of_all[lane] = __reduce_and_sync(half, bits);
  results->bits_of_any[lane] = __reduce_or_sync(half, bits);
  results->odd_bits[lane] = __reduce_xor_sync(half, bits);
  results->shifted[lane] = __shfl_up_sync(half, value, 1, 16);
  results->third[lane] = __shfl_sync(half, value, 3, 16);
}

__device__ uint32_t LoadSignal(const uint32_t* signal, Sharing sharing) {
  uint32_t value;
  if (sharing == Sharing::kAcquired) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(signal) : "memory");
  } else if (sharing == Sharing::kRelaxed) {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(signal) : "memory");
  } else {
    value = *static_cast<const volatile uint32_t*>(signal);
    if (sharing == Sharing::kFenced) __threadfence();
  }
  return value;
}

__device__ void StoreSignal(uint32_t* signal, Sharing sharing) {
  const uint32_t one = 1;
  if (sharing == Sharing::kAcquired || sharing == Sharing::kRelaxed) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(signal), "r"(one) : "memory");
  } else {
    if (sharing == Sharing::kFenced) __threadfence();
    *static_cast<volatile uint32_t*>(signal) = one;
  }
}

// Thread 0 of block 0 hands on a number, thread 0 of block 1 takes it.
__device__ void PassOn(Sharing sharing, int32_t* memory) {
  auto* const signal = reinterpret_cast<uint32_t*>(memory + 32);
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    memory[0] = 5;
    StoreSignal(signal, sharing);
  } else {
    while (LoadSignal(signal, sharing) == 0) {
    }
    memory[1] = memory[0];
  }
}

__device__ void ShareInWarp(Sharing sharing, int32_t* shared, int32_t* memory) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane >= 32 || blockIdx.x != 0) return;
  const unsigned half = lane < 16 ? 0x0000ffff : 0xffff0000;
  shared[lane] = lane;
  int32_t value = 0;
  switch (sharing) {
    case Sharing::kShuffleThenRead:
      value = __shfl_xor_sync(0xffffffff, lane, 1) + shared[lane ^ 1];
      break;
    case Sharing::kSyncThenRead:
      __syncwarp();
      value = shared[lane ^ 1];
      break;
    case Sharing::kSyncOfHalvesThenRead:
      __syncwarp(half);
      value = shared[lane ^ 1] + shared[lane ^ 16];
      break;
    default:
      __syncwarp();
      value = shared[lane ^ 1];
      if (__ballot_sync(0xffffffff, value >= 0) != 0) shared[lane] = 0;
  }
  memory[lane] = value;
}

__device__ void ShareInBlock(Sharing sharing, int32_t* shared, int32_t* memory) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (blockIdx.x != 0) return;
  shared[thread] = thread;
  if (sharing == Sharing::kWarpsWithBarrier) __syncthreads();
  memory[thread] = shared[63 - thread];
}

__device__ void ShareInGrid(Sharing sharing, int32_t* memory) {
  const auto thread = static_cast<int>(threadIdx.x);
  switch (sharing) {
    case Sharing::kBytes:
      reinterpret_cast<int8_t*>(memory)[2 * thread + static_cast<int>(blockIdx.x)] = 1;
      break;
    case Sharing::kAtomics:
      atomicAdd(memory, 1);
      break;
    case Sharing::kPlainAdds:
      *memory += 1;
      break;
    case Sharing::kPlainRead:
      if (thread == 0) {
        atomicAdd(memory, 1);
      } else if (thread == 1) {
        memory[1 + blockIdx.x] = *memory;
      }
      break;
    case Sharing::kOneValue:
      *memory = 1;
      break;
    default:
      *memory = static_cast<int32_t>(blockIdx.x);
  }
}

__global__ void SharingKernel(Sharing sharing, int32_t* memory) {
  __shared__ int32_t shared[64];
  switch (sharing) {
    case Sharing::kShuffleThenRead:
    case Sharing::kSyncThenRead:
    case Sharing::kSyncOfHalvesThenRead:
    case Sharing::kBallotThenWrite:
      return ShareInWarp(sharing, shared, memory);
    case Sharing::kWarpsWithoutBarrier:
    case Sharing::kWarpsWithBarrier:
      return ShareInBlock(sharing, shared, memory);
    case Sharing::kAcquired:
    case Sharing::kRelaxed:
    case Sharing::kFenced:
    case Sharing::kUnfenced:
      return PassOn(sharing, memory);
    default:
      return ShareInGrid(sharing, memory);
  }
}

__global__ void AddKernel(Wait wait, int32_t* numbers) {
  if (wait == Wait::kFirst) cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const int32_t before = numbers[threadIdx.x];
  if (wait == Wait::kLater) asm volatile("griddepcontrol.wait;" ::: "memory");
  numbers[threadIdx.x] = before + 1;
}

__global__ void PtxKernel(const float* from, float* to, uint64_t* times) {
  float a, b, c, d;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(times[0]));
  asm("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
      : "=f"(a), "=f"(b), "=f"(c), "=f"(d)
      : "l"(from));
  asm volatile("st.global.v2.f32 [%0], {%1, %2};\n\tst.global.v2.f32 [%0 + 8], {%3, %4};" ::"l"(to),
               "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
  uint32_t bits;
  for (int i = 4; i < 8; ++i) {
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(bits) : "l"(from + i));
    asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(to + i), "r"(bits) : "memory");
  }
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(times[1]));
}

__global__ void AskKernel(uint32_t* words, uint32_t* results) {
  __shared__ uint32_t answer;
  if (threadIdx.x == 0) {
    const uint32_t one = 1;
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(words), "r"(one) : "memory");
    do {
      asm volatile("ld.acquire.sys.global.u32 %0, [%1 + 4];"
                   : "=r"(answer)
                   : "l"(words)
                   : "memory");
    } while (answer == 0);
  }
  __syncthreads();
  results[threadIdx.x] = answer;
}

}  // namespace

void LaunchLanes(const int32_t* values, LaneResults* results) {
  LanesKernel<<<1, 32>>>(values, results);
}

void LaunchSharing(Sharing sharing, int32_t* memory) { SharingKernel<<<2, 64>>>(sharing, memory); }

cudaError_t LaunchAdd(Wait wait, bool programmatic, int32_t* numbers, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = programmatic ? 1 : 0;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(64);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, AddKernel, wait, numbers);
}

void LaunchPtx(const float* from, float* to, uint64_t* times) {
  PtxKernel<<<1, 1>>>(from, to, times);
}

void LaunchAsk(uint32_t* words, uint32_t* results) { AskKernel<<<1, 64>>>(words, results); }

}  // namespace eplb::cuda::testing
