// The nccl path over a stand-in for libnccl, in host memory or that of a queue: ranks are threads.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"
#include "client/rows/link_setup.h"
#include "client/rows/link_transport.h"
#include "client/rows/paths/nccl_path.h"
#include "client/rows/transport_trial.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/paths/host_world.h"
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
  ThreadAllGather all_gather(world.world_size);
  Transports transports(world.world_size);
  RunRanks(world.world_size, [&](int32_t rank) {
    const auto library = cuda::NcclLibrary::Load(EPLB_FAKE_NCCL);
    ASSERT_TRUE(library.ok()) << library.status();
    const TransportOptions options = HostOptions(rank, world.world_size, world.staging_bytes);
    auto parts = SetUpLinks(options, SharedStaging{}, all_gather.ForRank(rank));
    ASSERT_TRUE(parts.ok()) << parts.status();
    std::vector<PeerLink> links;
    std::vector<RankId> ranks;
    ranks.reserve(static_cast<size_t>(world.world_size));
    for (int32_t r = 0; r < world.world_size; ++r) ranks.push_back(RankId{r});
    for (LinkParts::Peer& peer : parts->peers) links.push_back(std::move(peer.link));
    auto path = MakeNcclPath({.library = *library,
                              .settings = {.piece_bytes = world.piece_bytes},
                              .device = world.device,
                              .self = RankId{rank},
                              .ranks = std::move(ranks),
                              .pack_queue = world.make_queue(),
                              .group_queue = world.make_queue(),
                              .check_queue = world.make_queue(),
                              .staging_bytes = world.staging_bytes,
                              .on_note = world.on_note});
    ASSERT_TRUE(path.ok()) << path.status();
    transports[rank] =
        MakeLinkTransport(RankId{rank}, options.max_row_bytes, std::move(links), *std::move(path));
    const absl::Status up = BringUp(*transports[rank], MonotonicNow() + absl::Seconds(30));
    ASSERT_TRUE(up.ok()) << up;
  });
  return transports;
}

inline Transports MakeSmallPieceNcclWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeNcclWorld({.world_size = world_size, .staging_bytes = staging_bytes});
}
inline Transports MakeLargePieceNcclWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeNcclWorld(
      {.world_size = world_size, .staging_bytes = staging_bytes, .piece_bytes = 1 << 20});
}

}  // namespace eplb
