// Rows of many sizes between all ranks of a world.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

#include "tests/client/rows/queue_memory.h"
#include "tests/client/rows/transport_contract.h"

namespace eplb {

inline constexpr std::byte kOld{0xEE};

// A world's moves and what staging must hold afterwards.
struct Traffic {
  std::vector<RowMoves> moves;                  // by rank
  std::vector<std::vector<std::byte>> staging;  // by rank
  // Padding of rows to 64 bytes, which may have any content.
  std::vector<std::vector<std::pair<int64_t, int64_t>>> padding;
  int64_t total_bytes = 0;
};

// The rows are put into `memory`.
inline Traffic RandomTraffic(std::mt19937& random, QueueMemory& memory, int32_t world_size,
                             uint64_t post_id, int64_t staging_bytes) {
  constexpr int32_t kRows = 24;
  Traffic traffic;
  traffic.moves.resize(world_size);
  traffic.staging.assign(world_size, std::vector<std::byte>(staging_bytes, kOld));
  traffic.padding.resize(world_size);
  std::vector<int64_t> used(world_size, 0);
  // A round has one receiver and one sender for each rank, and the rows between them.
  int32_t round = 0;
  std::map<int32_t, int32_t> receiver_of;
  std::map<int32_t, int32_t> sender_of;
  for (RowMoves& moves : traffic.moves) {
    moves.post_id = post_id;
    moves.deadline = absl::Now() + absl::Seconds(30);
  }
  constexpr int64_t kSizes[] = {0, 1, 63, 64, 65, 4096, 262'144, 262'145, 600'001};
  for (int32_t row = 0; row < kRows; ++row) {
    const auto from = static_cast<int32_t>(random() % world_size);
    const int32_t to = (from + 1 + static_cast<int32_t>(random() % (world_size - 1))) % world_size;
    const int64_t bytes = kSizes[random() % std::size(kSizes)];
    if (used[to] + bytes > staging_bytes) continue;
    std::vector<std::byte> source = RandomBytes(random, static_cast<size_t>(bytes));
    if (bytes > 0) std::memcpy(traffic.staging[to].data() + used[to], source.data(), source.size());
    if (receiver_of.try_emplace(from, to).first->second != to ||
        sender_of.try_emplace(to, from).first->second != from) {
      ++round;
      receiver_of = {{from, to}};
      sender_of = {{to, from}};
    }
    traffic.moves[from].sends.push_back({.to = RankId{to},
                                         .row = row,
                                         .round = round,
                                         .bytes = memory.Put(std::move(source)),
                                         .staging_offset = used[to]});
    traffic.moves[to].receives.push_back({.from = RankId{from},
                                          .row = row,
                                          .round = round,
                                          .staging_offset = used[to],
                                          .num_bytes = bytes});
    const int64_t end = used[to] + bytes;
    used[to] += (bytes + 63) / 64 * 64;
    traffic.padding[to].emplace_back(end, std::min(used[to], staging_bytes) - end);
    traffic.total_bytes += bytes;
  }
  return traffic;
}

}  // namespace eplb
