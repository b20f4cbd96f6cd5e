#include "absl/strings/str_cat.h"

#include "cuda/runtime.h"
#include "tests/bench/gemm.h"

namespace eplb::bench {
namespace {

constexpr int32_t kTile = 32;

// A block computes a tile of c, a thread one cell of it.
__global__ void GemmKernel(const float* a, const float* b, float* c, int32_t size) {
  __shared__ float a_tile[kTile][kTile];
  __shared__ float b_tile[kTile][kTile];
  const int32_t x = threadIdx.x;
  const int32_t y = threadIdx.y;
  const int64_t row = int64_t{blockIdx.y} * kTile + y;
  const int64_t column = int64_t{blockIdx.x} * kTile + x;
  float sum = 0;
  for (int32_t begin = 0; begin < size; begin += kTile) {
    a_tile[y][x] = a[row * size + begin + x];
    b_tile[y][x] = b[int64_t{begin + y} * size + column];
    __syncthreads();
    for (int32_t i = 0; i < kTile; ++i) sum += a_tile[y][i] * b_tile[i][x];
    __syncthreads();
  }
  c[row * size + column] = sum;
}

}  // namespace

absl::Status LaunchGemm(const float* a, const float* b, float* c, int32_t size,
                        cudaStream_t stream) {
  if (size <= 0 || size % kTile != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("size is ", size, ", it must be a multiple of ", kTile));
  }
  const auto tiles = static_cast<unsigned int>(size / kTile);
  GemmKernel<<<dim3(tiles, tiles), dim3(kTile, kTile), 0, stream>>>(a, b, c, size);
  return cuda::ToStatus(cudaGetLastError(), "launch of the matrix product");
}

}  // namespace eplb::bench
