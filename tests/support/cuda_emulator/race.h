// Race detector: reports accesses to one address that CUDA's memory model does not order.
//
// The compiler calls the functions of access_hooks.cc before each load and store of the kernels'
// translation, as it would call ThreadSanitizer's. So all is seen that the compiler leaves as a
// load or store of shared, device or pinned memory. Not seen: copies that stay calls of memcpy or
// memset, static variables of a kernel's file, and accesses by threads of the host.
#pragma once

#include <cstddef>

namespace eplb::cuda_emulator {

// Notes an access of the thread that runs; an earlier one that races with it ends the launch.
// Does nothing outside of kernels. place: an address that a call in the kernel returns to.
struct AccessKind {
  bool writes = false;
  bool is_atomic = false;
};
void NoteKernelAccess(const void* address, size_t size, AccessKind kind, const void* place);
// Looks at the latest writes again before another thread runs: two writes of one value do not race.
void CheckWrites();

// Begins a launch. overlaps: the accesses of the launch before it may race with its own.
void BeginRaceDetection(bool overlaps);

// Returns the place that calls it.
const void* Here();

}  // namespace eplb::cuda_emulator
