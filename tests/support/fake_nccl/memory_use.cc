#include "tests/support/fake_nccl/memory_use.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/support/fake_nccl/fake_nccl.h"
#include "tests/support/fake_nccl/violations.h"

namespace eplb::fake_nccl {
namespace {

struct Range {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool Overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
  bool Holds(const Range& other) const { return begin <= other.begin && other.end <= end; }
};
Range RangeOf(const void* address, size_t size) {
  const auto* const begin = static_cast<const std::byte*>(address);
  return {begin, begin + size};
}

struct Use {
  Range range;
  std::function<bool()> is_over;
};
struct Registration {
  const void* owner = nullptr;
  Range range;
};
struct State {
  std::mutex mutex;
  std::vector<Use> uses;
  std::map<uint64_t, Registration> registrations;
  uint64_t next_handle = 1;
  std::atomic<int64_t> bytes_passed{0};
};
State& TheMemory() {
  static auto& state = *new State();
  return state;
}

void OnFree(const void* address, size_t size) {
  const Range freed = RangeOf(address, size);
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  std::erase_if(TheMemory().uses, [](const Use& use) { return use.is_over(); });
  for (const Use& use : TheMemory().uses) {
    if (use.range.Overlaps(freed)) Blame("memory was freed that a group still uses");
  }
  for (const auto& [handle, registration] : TheMemory().registrations) {
    if (registration.range.Overlaps(freed)) Blame("memory was freed that is registered");
  }
}

const fake_cuda::ForLibraries* FindCuda() {
  void* const found = dlsym(RTLD_DEFAULT, "fakeCudaForLibraries");
  if (found == nullptr) return nullptr;
  const fake_cuda::ForLibraries* const cuda =
      reinterpret_cast<decltype(&fakeCudaForLibraries)>(found)();
  cuda->on_free(&OnFree);
  return cuda;
}

void EndWithRegistrations() {
  const size_t left = NumRegistered();
  if (left == 0) return;
  std::fprintf(stderr, "the stand-in for NCCL: %zu registrations are left\n", left);
  _exit(kFakeNcclViolationExit);
}

uint64_t Key(void* handle) { return reinterpret_cast<uint64_t>(handle); }

}  // namespace

const fake_cuda::ForLibraries* Cuda() {
  static const fake_cuda::ForLibraries* const cuda = FindCuda();
  return cuda;
}

uint64_t HashOf(const std::byte* bytes, size_t size) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ULL;
  uint64_t hash = size;
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min(sizeof(word), size - at));
    hash = (hash ^ word) * kOdd;
    hash ^= hash >> 29;
  }
  return hash | 1;
}

void AddUse(const void* address, size_t size, std::function<bool()> is_over) {
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  std::erase_if(TheMemory().uses, [](const Use& use) { return use.is_over(); });
  TheMemory().uses.push_back({RangeOf(address, size), std::move(is_over)});
}

void* Register(const void* owner, const void* address, size_t size) {
  static const int registered = std::atexit(&EndWithRegistrations);
  (void)registered;
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  const uint64_t handle = TheMemory().next_handle++;
  TheMemory().registrations[handle] = {owner, RangeOf(address, size)};
  return reinterpret_cast<void*>(handle);  // NOLINT(performance-no-int-to-ptr): never dereferenced
}

bool Deregister(const void* owner, void* handle) {
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  const auto found = TheMemory().registrations.find(Key(handle));
  if (found == TheMemory().registrations.end() || found->second.owner != owner) return false;
  TheMemory().registrations.erase(found);
  return true;
}

void DeregisterAll(const void* owner) {
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  std::erase_if(TheMemory().registrations,
                [owner](const auto& entry) { return entry.second.owner == owner; });
}

bool IsRegistered(const void* owner, const void* address, size_t size) {
  const Range range = RangeOf(address, size);
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  for (const auto& [handle, registration] : TheMemory().registrations) {
    if (registration.owner == owner && registration.range.Holds(range)) return true;
  }
  return false;
}

size_t NumRegistered() {
  const std::lock_guard<std::mutex> lock(TheMemory().mutex);
  return TheMemory().registrations.size();
}

void CountPasses(std::span<const Operation> operations) {
  constexpr int64_t kThroughBuffers = 3;
  for (const Operation& operation : operations) {
    TheMemory().bytes_passed +=
        static_cast<int64_t>(operation.bytes) * (operation.is_registered ? 1 : kThroughBuffers);
  }
}

int64_t BytesPassed() { return TheMemory().bytes_passed; }

}  // namespace eplb::fake_nccl
