#include "tests/client/fault_points/journal.h"

#include <sys/mman.h>

#include <functional>
#include <new>
#include <string>
#include <vector>

#include "absl/time/clock.h"

namespace eplb {
namespace {

bool Await(const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!done()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Microseconds(200));
  }
  return true;
}

}  // namespace

SharedWorldPtr MakeSharedWorld() {
  void* const memory = mmap(nullptr, sizeof(SharedWorld), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // Pages come as zeros, which is what the members begin with; the blobs stay untouched.
  return {static_cast<SharedWorld*>(memory),
          [](SharedWorld* world) { munmap(world, sizeof(SharedWorld)); }};
}

AllGather MakeSharedAllGather(SharedWorld& world, int32_t rank, int32_t world_size) {
  return [&world, rank, world_size, call = int32_t{0}](
             std::string_view bytes) mutable -> absl::StatusOr<std::vector<std::string>> {
    SharedWorld::Desk& own = world.desks[static_cast<size_t>(rank)];
    const auto all = [&](const std::function<bool(const SharedWorld::Desk&)>& holds) {
      for (int32_t r = 0; r < world_size; ++r) {
        if (!holds(world.desks[static_cast<size_t>(r)])) return false;
      }
      return true;
    };
    if (bytes.size() > own.blob.size()) return absl::InvalidArgumentError("a blob is too large");
    const bool heard =
        Await([&] { return all([&](const auto& desk) { return desk.num_heard >= call; }); });
    if (heard) {
      bytes.copy(own.blob.data(), bytes.size());
      own.size = static_cast<int32_t>(bytes.size());
      own.num_said = ++call;
    }
    const bool said = heard && Await([&] {
                        return all([&](const auto& desk) { return desk.num_said >= call; });
                      });
    if (!said) return absl::DeadlineExceededError("not all ranks came");
    std::vector<std::string> blobs;
    for (int32_t r = 0; r < world_size; ++r) {
      const SharedWorld::Desk& desk = world.desks[static_cast<size_t>(r)];
      blobs.emplace_back(desk.blob.data(), static_cast<size_t>(desk.size));
    }
    own.num_heard = call;
    return blobs;
  };
}

}  // namespace eplb
