// The hybrid path over a stand-in for libnccl, in host memory or that of a queue: ranks are
// threads, and a function says which of them share a host.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "client/rows/paths/hybrid_path.h"
#include "client/rows/paths/nccl_path.h"
#include "tests/client/rows/paths/linked_world.h"
#include "tests/client/rows/paths/peer_world.h"

namespace eplb {

using HostOf = int32_t (*)(int32_t rank);

// Hosts of four ranks: 2+2, 3+1, 1+1+2, and 2+2 alternating. Fewer ranks may all share a host, or
// none.
inline int32_t HostsOfTwo(int32_t rank) { return rank / 2; }
inline int32_t ThreeAndTheRest(int32_t rank) { return rank < 3 ? 0 : 1; }
inline int32_t TwoAloneAndTheRest(int32_t rank) { return rank < 2 ? rank : 2; }
inline int32_t TwoHostsInTurns(int32_t rank) { return rank % 2; }

struct HybridWorldOptions {
  int32_t world_size = 4;
  int64_t staging_bytes = 0;
  HostOf host_of = &HostsOfTwo;
  // Wraps a rank's path. Null: the path is used unchanged.
  std::function<std::unique_ptr<RowPath>(int32_t rank, std::unique_ptr<RowPath> path)> wrap = {};
  // Changes what a rank has mapped. May be null.
  std::function<void(int32_t rank, std::map<RankId, std::span<std::byte>>& mapped)> remap = {};
  int64_t piece_bytes = 4096;  // small, so that rows are cut
  std::optional<int32_t> device = std::nullopt;
  MakeQueue make_queue = &cuda::MakeHostRowQueue;
};

inline std::unique_ptr<RowPath> MakeHybridPathOf(int32_t rank, const HybridWorldOptions& world,
                                                 const std::shared_ptr<StagingOfRanks>& staging) {
  std::map<RankId, std::span<std::byte>> mapped;
  std::vector<RankId> ranks;
  std::set<RankId> same_host;
  for (int32_t other = 0; other < world.world_size; ++other) {
    ranks.push_back(RankId{other});
    if (world.host_of(other) != world.host_of(rank)) continue;
    same_host.insert(RankId{other});
    if (other != rank) mapped[RankId{other}] = staging->buffers[other].bytes;
  }
  if (world.remap) world.remap(rank, mapped);
  const std::span<std::byte> own = staging->buffers[rank].bytes;
  const auto library = cuda::NcclLibrary::Load(EPLB_FAKE_NCCL);
  EXPECT_TRUE(library.ok()) << library.status();
  auto nccl = MakeNcclPath(
      {.library = *library,
       .settings = {.piece_bytes = world.piece_bytes},
       .device = world.device,
       .self = RankId{rank},
       .ranks = std::move(ranks),
       .pack_queue = world.make_queue(),
       .group_queue = world.make_queue(),
       .check_queue = world.make_queue(),
       .staging = cuda::RowBuffer{.owner = {own.data(), [staging](auto*) {}}, .bytes = own},
       .is_staging_registrable = true,
       .without_rows = {same_host.begin(), same_host.end()}});
  EXPECT_TRUE(nccl.ok()) << nccl.status();
  return MakeHybridPath({.peer = MakePeerPath({.owner = staging,
                                               .staging = own,
                                               .mapped = std::move(mapped),
                                               .queue = world.make_queue(),
                                               .check_queue = world.make_queue()}),
                         .nccl = *std::move(nccl),
                         .same_host = std::move(same_host)});
}

// A communicator that does not come up fails the test.
inline Transports MakeHybridWorldOver(const HybridWorldOptions& world) {
  auto staging = std::make_shared<StagingOfRanks>(world.world_size);
  for (int32_t rank = 0; rank < world.world_size; ++rank) {
    staging->queues[rank] = world.make_queue();
    auto buffer = staging->queues[rank]->Allocate(world.staging_bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    staging->buffers[rank] = *std::move(buffer);
    // Reused memory can hold the rows of an earlier world, and a row that does not arrive would
    // then pass its checksum.
    if (!world.device) std::ranges::fill(staging->buffers[rank].bytes, std::byte{0});
  }
  return BroughtUp(MakeLinkedWorld(world.world_size, world.staging_bytes, [&](int32_t rank) {
    std::unique_ptr<RowPath> path = MakeHybridPathOf(rank, world, staging);
    return world.wrap ? world.wrap(rank, std::move(path)) : std::move(path);
  }));
}

template <HostOf kHostOf>
Transports MakeHybridWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeHybridWorldOver(
      {.world_size = world_size, .staging_bytes = staging_bytes, .host_of = kHostOf});
}

}  // namespace eplb
