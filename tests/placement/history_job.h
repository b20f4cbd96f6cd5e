// A job's logs that break no promise, to be edited into ones that do.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/run_log/history.h"

namespace eplb {

inline constexpr int32_t kNumRanks = 2;

// Two ranks, two runs: version 1 runs from step 0, version 2 from step 16; the job falls after
// step 20 and comes back at step 8 from a checkpoint with version 1, then takes version 5.
struct Job {
  std::vector<RankHistory> ranks;
  std::vector<PlacementRecord> placements;

  std::vector<std::string> Violations() const { return FindViolations(ranks, placements); }
  std::vector<HistoryRecord>& Log(size_t rank) { return ranks[rank].records; }
};

inline Placement PlacementOf(int64_t version) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 6, .num_slots = 6, .num_gpus = 2});
  IndexMatrix slots(1, 6);
  for (int32_t slot = 0; slot < 6; ++slot) {
    slots(0, slot) = (slot + static_cast<int32_t>(version)) % 6;
  }
  return *Placement::FromSlots(topology, slots);
}

inline Digest DigestOfVersion(int64_t version) { return DigestOf(PlacementOf(version)); }

inline std::string Short(int64_t version) { return DigestOfVersion(version).Hex().substr(0, 12); }

inline std::string Name(int64_t version) {
  return absl::StrCat("version ", version, " (digest ", Short(version), ")");
}

inline HistoryRecord Record(HistoryRecord::Kind kind, const std::string& run_id, int64_t step,
                            int64_t version) {
  return {.kind = kind,
          .rank = {},
          .run_id = run_id,
          .step = step,
          .last_step = 0,
          .version = version,
          .digest = DigestOfVersion(version),
          .passed = kind == HistoryRecord::Kind::kVote};
}

inline HistoryRecord Range(const std::string& run_id, int64_t first, int64_t last,
                           int64_t version) {
  HistoryRecord record = Record(HistoryRecord::Kind::kStep, run_id, first, version);
  record.last_step = last;
  return record;
}

// Positions in each log, for the edits below.
enum : size_t {
  kStartA,
  kStepA1,
  kPreparedA,
  kVoteA,
  kCommitA,
  kStepA2,
  kStartB,
  kStepB1,
  kPreparedB,
  kVoteB,
  kCommitB,
  kStepB2,
  kStopB
};

inline Job GoodJob() {
  Job job;
  for (int32_t rank = 0; rank < kNumRanks; ++rank) {
    std::vector<HistoryRecord> log{Record(HistoryRecord::Kind::kStart, "a", 0, 1),
                                   Range("a", 0, 15, 1),
                                   Record(HistoryRecord::Kind::kPrepared, "a", 12, 2),
                                   Record(HistoryRecord::Kind::kVote, "a", 15, 2),
                                   Record(HistoryRecord::Kind::kCommit, "a", 15, 2),
                                   Range("a", 16, 20, 2),
                                   Record(HistoryRecord::Kind::kStart, "b", 8, 1),
                                   Range("b", 8, 23, 1),
                                   Record(HistoryRecord::Kind::kPrepared, "b", 20, 5),
                                   Record(HistoryRecord::Kind::kVote, "b", 23, 5),
                                   Record(HistoryRecord::Kind::kCommit, "b", 23, 5),
                                   Range("b", 24, 31, 5),
                                   Record(HistoryRecord::Kind::kStop, "b", 31, 5)};
    for (HistoryRecord& record : log) record.rank = RankId{rank};
    job.ranks.push_back({RankId{rank}, std::move(log)});
  }
  for (const auto& [step, version] : {std::pair{0, 1}, {16, 2}, {8, 1}, {24, 5}}) {
    job.placements.push_back({step, version, DigestOfVersion(version), PlacementOf(version)});
  }
  return job;
}

}  // namespace eplb
