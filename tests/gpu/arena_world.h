// The path of the peer transport over staging that is handed over as between processes: where the
// device allows it a descriptor of virtual memory, which every other rank maps for itself.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/rows/paths/peer_path.h"
#include "cuda/peer_arena.h"
#include "tests/client/rows/paths/linked_world.h"
#include "tests/gpu/device_queue.h"

namespace eplb {

struct ArenasOfRanks {
  std::vector<cuda::PeerArena> own;
  std::vector<cuda::PeerArena> mapped;  // go first
};

// Returns the text as another process would send it, if it can be mapped from there.
inline std::string TextFromElsewhere(const cuda::PeerArenaOffer& offer) {
  if (offer.descriptor < 0) return offer.text;
  std::string text = offer.text;
  return text.insert(text.find(' ') + 1, "elsewhere.");
}

inline Transports MakeArenaWorld(int32_t world_size, int64_t staging_bytes) {
  auto arenas = std::make_shared<ArenasOfRanks>();
  for (int32_t rank = 0; rank < world_size; ++rank) {
    auto arena = cuda::PeerArena::Make(0, staging_bytes);
    EXPECT_TRUE(arena.ok()) << arena.status();
    arenas->own.push_back(*std::move(arena));
  }
  std::vector<std::map<RankId, std::span<std::byte>>> mapped(static_cast<size_t>(world_size));
  for (int32_t rank = 0; rank < world_size; ++rank) {
    for (int32_t peer = 0; peer < world_size; ++peer) {
      if (peer == rank) continue;
      const cuda::PeerArenaOffer offer = arenas->own[peer].offer();
      auto arena =
          cuda::PeerArena::Map(0, TextFromElsewhere(offer), offer.descriptor, staging_bytes);
      EXPECT_TRUE(arena.ok()) << arena.status();
      mapped[rank][RankId{peer}] = arena->bytes();
      arenas->mapped.push_back(*std::move(arena));
    }
  }
  return MakeLinkedWorld(world_size, staging_bytes, [&](int32_t rank) {
    return MakePeerPath({.owner = arenas,
                         .staging = arenas->own[rank].bytes(),
                         .mapped = mapped[rank],
                         .queue = MakeDeviceQueue(),
                         .check_queue = MakeDeviceQueue()});
  });
}

}  // namespace eplb
