// The nccl path over a stand-in for libnccl, in host memory or that of a queue: ranks are threads.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "client/rows/paths/nccl_path.h"
#include "tests/client/rows/paths/linked_world.h"
#include "tests/client/rows/queue_memory.h"
#include "tests/support/fake_nccl/fake_nccl.h"

namespace eplb {

// One of the functions that only the stand-in has.
template <class Function>
Function* OfFakeNccl(const char* name) {
  void* const library = dlopen(EPLB_FAKE_NCCL, RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

struct NcclWorldOptions {
  int32_t world_size = 2;
  int64_t staging_bytes = 0;
  int64_t piece_bytes = 4096;  // small, so that rows are cut
  std::optional<int32_t> device = std::nullopt;
  MakeQueue make_queue = &cuda::MakeHostRowQueue;
  std::function<void(std::string_view line)> on_note = {};
};

inline Transports MakeNcclWorld(const NcclWorldOptions& world) {
  return BroughtUp(MakeLinkedWorld(world.world_size, world.staging_bytes, [&](int32_t rank) {
    std::vector<RankId> ranks;
    for (int32_t r = 0; r < world.world_size; ++r) ranks.push_back(RankId{r});
    auto path = MakeNcclPath({.library = cuda::NcclLibrary::Load(EPLB_FAKE_NCCL).value(),
                              .settings = {.piece_bytes = world.piece_bytes},
                              .device = world.device,
                              .self = RankId{rank},
                              .ranks = std::move(ranks),
                              .pack_queue = world.make_queue(),
                              .group_queue = world.make_queue(),
                              .check_queue = world.make_queue(),
                              .staging_bytes = world.staging_bytes,
                              .on_note = world.on_note});
    return std::move(path).value();
  }));
}

inline Transports MakeSmallPieceNcclWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeNcclWorld({.world_size = world_size, .staging_bytes = staging_bytes});
}
inline Transports MakeLargePieceNcclWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeNcclWorld(
      {.world_size = world_size, .staging_bytes = staging_bytes, .piece_bytes = 1 << 20});
}

}  // namespace eplb
