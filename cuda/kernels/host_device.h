// Marks a function that both the CPU and the GPU run: a kernel body over an explicit index.
#ifndef EPLB_CUDA_KERNELS_HOST_DEVICE_H_
#define EPLB_CUDA_KERNELS_HOST_DEVICE_H_

#ifdef __CUDACC__
#define EPLB_HOST_DEVICE __host__ __device__
#else
#define EPLB_HOST_DEVICE
#endif

#endif  // EPLB_CUDA_KERNELS_HOST_DEVICE_H_
