// The turn of a kernel among those of its stream, where LaunchInTurn lets them overlap.
#pragma once

namespace eplb::cuda {

// Lets the next kernel of the stream take its place on the GPU, and waits until the kernels before
// this one have ended. A kernel touches no memory that others use before it calls this, and all of
// its threads call it: otherwise a kernel two places later would not wait for the first.
__device__ inline void TakeTurn() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

}  // namespace eplb::cuda
