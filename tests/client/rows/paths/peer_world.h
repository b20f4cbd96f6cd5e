// The path of the peer transport in host memory: ranks are threads, whose staging is mapped because
// it is theirs. On a GPU the same code runs over CUDA queues.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "client/rows/paths/peer_path.h"
#include "tests/client/rows/paths/linked_world.h"

namespace eplb {

struct StagingOfRanks {
  explicit StagingOfRanks(int32_t world_size) : queues(world_size), buffers(world_size) {}
  // Queues go after the memory that they allocated.
  std::vector<std::unique_ptr<cuda::RowQueue>> queues;
  std::vector<cuda::RowBuffer> buffers;
};

inline Transports MakePeerWorldOver(int32_t world_size, int64_t staging_bytes, MakeQueue make) {
  auto staging = std::make_shared<StagingOfRanks>(world_size);
  std::map<RankId, std::span<std::byte>> mapped;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    staging->queues[rank] = make();
    auto buffer = staging->queues[rank]->Allocate(staging_bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    staging->buffers[rank] = *std::move(buffer);
    mapped[RankId{rank}] = staging->buffers[rank].bytes;
  }
  return MakeLinkedWorld(world_size, staging_bytes, [&](int32_t rank) {
    return MakePeerPath({.owner = staging,
                         .staging = mapped[RankId{rank}],
                         .mapped = mapped,
                         .queue = make(),
                         .check_queue = make()});
  });
}

inline Transports MakePeerWorld(int32_t world_size, int64_t staging_bytes) {
  return MakePeerWorldOver(world_size, staging_bytes, &cuda::MakeHostRowQueue);
}

}  // namespace eplb
