#include "tests/support/cuda_emulator/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"

#include "tests/support/cuda_emulator/shadow.h"

namespace eplb::cuda_emulator {
namespace {

constexpr std::byte kGuard{0xA5};
constexpr size_t kAlignment = 256;  // alignment of CUDA's allocations
constexpr size_t kLargest = size_t{16} << 30;
constexpr size_t kArenaBytes = size_t{1} << 40;

struct Region {
  Place place = Place::kDevice;
  size_t size = 0;
  bool is_registered = false;  // the program's own memory, which has no guards
};

// Pages without access follow the last byte's page and precede the first's. Bytes of these pages
// that are not the allocation's are guards.
struct Arena {
  std::byte* begin = nullptr;
  std::byte* next = nullptr;
  std::map<const std::byte*, Region> regions;
  std::map<const std::byte*, Region>::const_iterator last_found;  // kernels ask again and again
  int num_registered = 0;

  bool Has(const std::byte* at) const { return at >= begin && at < begin + kArenaBytes; }
};

Arena& TheArena() {
  static auto* const arena = [] {
    auto* const made = new Arena();
    void* const memory =
        mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    made->begin = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
    made->next = made->begin;
    made->last_found = made->regions.end();
    return made;
  }();
  return *arena;
}

size_t RoundedUp(size_t size, size_t to) { return (size + to - 1) / to * to; }

std::byte* FirstPage(const std::byte* address) {
  return const_cast<std::byte*>(address) - reinterpret_cast<uintptr_t>(address) % kPage;
}

bool AreGuards(const std::byte* begin, const std::byte* end) {
  for (const std::byte* at = begin; at < end; ++at) {
    if (*at != kGuard) return false;
  }
  return true;
}

const std::byte* EndOfGuards(const std::byte* address, const Region& region) {
  const std::byte* const end = address + region.size;
  return FirstPage(end + kPage - 1);
}

}  // namespace

cudaError_t Allocate(size_t size, Place place, void** address) {
  Arena& arena = TheArena();
  *address = nullptr;
  if (size == 0) return cudaSuccess;
  const size_t rounded = RoundedUp(size, kAlignment);
  const size_t pages = RoundedUp(rounded, kPage);
  if (arena.begin == nullptr || size > kLargest ||
      arena.next + pages + 2 * kPage > arena.begin + kArenaBytes) {
    return cudaErrorMemoryAllocation;
  }
  std::byte* const memory = arena.next + kPage;
  if (mprotect(memory, pages, PROT_READ | PROT_WRITE) != 0) return cudaErrorMemoryAllocation;
  arena.next = memory + pages;
  std::byte* const begin = memory + pages - rounded;
  std::memset(memory, std::to_integer<int>(kGuard), static_cast<size_t>(begin - memory));
  std::memset(begin, kUnwritten, size);
  std::memset(begin + size, std::to_integer<int>(kGuard), rounded - size);
  arena.regions[begin] = {.place = place, .size = size};
  *address = begin;
  return cudaSuccess;
}

cudaError_t Free(void* address, Place place) {
  if (address == nullptr) return cudaSuccess;
  Arena& arena = TheArena();
  const auto found = arena.regions.find(static_cast<std::byte*>(address));
  if (found == arena.regions.end() || found->second.place != place || found->second.is_registered) {
    return cudaErrorInvalidValue;
  }
  std::byte* const first = FirstPage(found->first);
  const auto size = static_cast<size_t>(EndOfGuards(found->first, found->second) - first);
  arena.last_found = arena.regions.end();
  arena.regions.erase(found);
  ForgetAccesses(first, size);
  // New pages without access in its place: its memory goes back and its addresses stay taken.
  void* const kept =
      mmap(first, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return kept == MAP_FAILED ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t Register(void* address, size_t size) {
  const Region region{.place = Place::kPinned, .size = size, .is_registered = true};
  const bool is_new =
      TheArena().regions.try_emplace(static_cast<std::byte*>(address), region).second;
  if (is_new) ++TheArena().num_registered;
  return is_new ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
}

cudaError_t Unregister(void* address) {
  Arena& arena = TheArena();
  const auto found = arena.regions.find(static_cast<std::byte*>(address));
  if (found == arena.regions.end() || !found->second.is_registered) {
    return cudaErrorHostMemoryNotRegistered;
  }
  arena.last_found = arena.regions.end();
  --arena.num_registered;
  ForgetAccesses(address, found->second.size);
  arena.regions.erase(found);
  return cudaSuccess;
}

Found Find(const void* address, size_t size) {
  Arena& arena = TheArena();
  const auto* const at = static_cast<const std::byte*>(address);
  const auto has = [&](auto region) {
    return region != arena.regions.end() && at >= region->first &&
           at < region->first + region->second.size;
  };
  if (!has(arena.last_found)) {
    const auto above = arena.regions.upper_bound(at);
    if (above == arena.regions.begin() || !has(std::prev(above))) return {};
    arena.last_found = std::prev(above);
  }
  const auto& [begin, region] = *arena.last_found;
  return {region.place, size <= region.size - static_cast<size_t>(at - begin)};
}

bool IsBetween(const void* address) {
  const Arena& arena = TheArena();
  const auto* const at = static_cast<const std::byte*>(address);
  return arena.Has(at) && Find(address, 1).place == Place::kUnknown;
}

bool IsWatched(const void* address) {
  const Arena& arena = TheArena();
  if (arena.Has(static_cast<const std::byte*>(address))) return true;
  return arena.num_registered > 0 && Find(address, 1).place != Place::kUnknown;
}

std::string WhatIsDamaged() {
  for (const auto& [begin, region] : TheArena().regions) {
    if (region.is_registered) continue;
    const std::byte* const end = begin + region.size;
    if (!AreGuards(end, EndOfGuards(begin, region))) {
      return absl::StrCat("bytes behind an allocation of ", region.size, " bytes were written");
    }
    if (!AreGuards(FirstPage(begin), begin)) {
      return absl::StrCat("bytes before an allocation of ", region.size, " bytes were written");
    }
  }
  return "";
}

}  // namespace eplb::cuda_emulator
