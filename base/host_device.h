// Marks what both the CPU and the GPU run.
#pragma once

#ifdef __CUDACC__
#define EPLB_HOST_DEVICE __host__ __device__
#else
#define EPLB_HOST_DEVICE
#endif

// Before a loop of fixed length, over an array that must stay in registers: nvcc leaves a long body
// rolled, and the array then lies in memory. EPLB_ROLLED keeps a loop of any length rolled.
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
#define EPLB_UNROLL _Pragma("unroll")
#define EPLB_ROLLED _Pragma("unroll 1")
#else
#define EPLB_UNROLL
#define EPLB_ROLLED
#endif
