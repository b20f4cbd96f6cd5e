// The turn of a kernel whose launch overlaps the kernel before it on its stream: ShapeInTurn.
#pragma once

namespace eplb::cuda {

// Waits until all kernels before this one have ended and this thread sees what they wrote. All
// threads call it before they touch memory of the device.
__device__ inline void AwaitTurn() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Lets the stream's next kernel take its place on the GPU, where it waits for its turn. The call is
// late in a kernel, because a kernel that waits occupies multiprocessors.
__device__ inline void OfferTurn() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

}  // namespace eplb::cuda
