// Memory that NCCL works with: where it lies, who still uses it, what is registered, and how often
// NCCL's kernels pass over it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "tests/support/fake_cuda/external.h"
#include "tests/support/fake_nccl/plans.h"

namespace eplb::fake_nccl {

// The stand-in for CUDA of this program; null without one.
const fake_cuda::ForLibraries* Cuda();

// Never 0.
uint64_t HashOf(const std::byte* bytes, size_t size);

// All below threads: safe. To free memory that is used or registered is blamed.

// Until `is_over` says true, which is called at any time, also after the communicator.
void AddUse(const void* address, size_t size, std::function<bool()> is_over);

// A handle, of `owner`.
void* Register(const void* owner, const void* address, size_t size);
// False when the owner has no such registration.
bool Deregister(const void* owner, void* handle);
// At the end of the owner.
void DeregisterAll(const void* owner);
bool IsRegistered(const void* owner, const void* address, size_t size);
size_t NumRegistered();

// Bytes of the device's memory that kernels of these operations read and write: one pass over
// registered memory; two more where the bytes go through a buffer of NCCL's own.
void CountPasses(std::span<const Operation> operations);
int64_t BytesPassed();

}  // namespace eplb::fake_nccl
