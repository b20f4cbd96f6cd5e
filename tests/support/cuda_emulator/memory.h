// Memory of the emulated device: an address is used once, and what lies around an allocation is
// watched.
#pragma once

#include <cstddef>
#include <string>

#include <cuda_runtime_api.h>

namespace eplb::cuda_emulator {

inline constexpr int kUnwritten = 0xCD;  // bytes of new memory
inline constexpr size_t kPage = 4096;

enum class Place { kUnknown, kDevice, kPinned };

cudaError_t Allocate(size_t size, Place place, void** address);
cudaError_t Free(void* address, Place place);
cudaError_t Register(void* address, size_t size);
cudaError_t Unregister(void* address);

struct Found {
  Place place = Place::kUnknown;
  bool is_whole = false;  // all bytes are of one allocation
};
Found Find(const void* address, size_t size);
// Between the allocations, where no kernel may read or write.
bool IsBetween(const void* address);

// True for memory that kernels and the host share, of which the race detector notes accesses.
bool IsWatched(const void* address);

// "" or which allocation has been written around.
std::string WhatIsDamaged();

}  // namespace eplb::cuda_emulator
