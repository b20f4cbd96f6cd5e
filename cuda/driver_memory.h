// Whose memory a pointer is, by the CUDA driver that the process has loaded: also where our own
// CUDA runtime cannot use that driver, or was not built in, and the training framework's can.
#ifndef EPLB_CUDA_DRIVER_MEMORY_H_
#define EPLB_CUDA_DRIVER_MEMORY_H_

namespace eplb::cuda {

// False without a loaded driver, and for memory that it does not know. Managed memory is the GPU's
// as well. threads: safe. cost: microseconds.
bool IsGpuMemory(const void* memory);

// Whether the loader finds a driver at all.
bool DriverIsInstalled();

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_DRIVER_MEMORY_H_
