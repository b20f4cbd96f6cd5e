// Marks a function that both the CPU and the GPU run.
#ifndef EPLB_BASE_HOST_DEVICE_H_
#define EPLB_BASE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define EPLB_HOST_DEVICE __host__ __device__
#else
#define EPLB_HOST_DEVICE
#endif

#endif  // EPLB_BASE_HOST_DEVICE_H_
