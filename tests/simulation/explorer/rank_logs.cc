#include "tests/simulation/explorer/rank_logs.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tests/simulation/explorer/bytes.h"
#include "tests/simulation/explorer/small_world.h"

namespace eplb::explorer {
namespace {

using Kind = HistoryRecord::Kind;

// Every placement of this world, by digest.
const Placement* FindPlacement(const Digest& digest) {
  static const auto& placements = *new std::vector<Placement>([] {
    std::vector<Placement> all;
    for (int bits = 0; bits < 4; ++bits) {
      IndexMatrix slots = StartPlacement().physical_to_logical_map();
      for (int layer = 0; layer < 2; ++layer) {
        if ((bits >> layer & 1) != 0) std::swap(slots(layer, 1), slots(layer, 2));
      }
      all.push_back(Placement::FromSlots(SmallTopology(), slots).value());
    }
    return all;
  }());
  static const auto& digests = *new std::vector<Digest>([] {
    std::vector<Digest> all;
    for (const Placement& placement : placements) all.push_back(DigestOf(placement));
    return all;
  }());
  const auto found = std::find(digests.begin(), digests.end(), digest);
  return found == digests.end() ? nullptr : &placements[found - digests.begin()];
}

}  // namespace

uint32_t RankLogs::Start(const World&) {
  ends_.Add("", {});  // 0 is the empty log
  HistoryRecord start{.kind = Kind::kStart};
  start.version = kStartVersion;
  start.digest = DigestOf(StartPlacement());
  All all{};
  all[0].fill(Append(0, start));
  return Keep(all);
}

uint32_t RankLogs::Append(uint32_t log, HistoryRecord record) {
  End end = ends_[log];
  end.before = log;
  switch (record.kind) {
    case Kind::kStart:
      end.next_step = 0;
      record.step = 0;
      break;
    case Kind::kStep:
      record.step = end.next_step++;
      record.last_step = record.step;
      record.version = end.version;
      record.digest = end.digest;
      break;
    default:
      record.step = end.next_step - 1;
  }
  if (record.kind == Kind::kStart || record.kind == Kind::kCommit) {
    end.version = record.version;
    end.digest = record.digest;
  }
  end.record = record;
  Bytes bytes;
  bytes.Add(int64_t{log});
  bytes.Add(static_cast<int64_t>(record.kind) * 2 + (record.passed ? 1 : 0));
  bytes.Add(record.version);
  bytes.Add(record.digest);
  return ends_.Add(std::move(bytes).Take(), end);
}

uint32_t RankLogs::Keep(const All& all) {
  std::string bytes(reinterpret_cast<const char*>(&all), sizeof(all));
  return all_.Add(std::move(bytes), all);
}

uint32_t RankLogs::After(uint32_t logs, const Successor& successor) {
  const bool same_order = successor.permutation == std::array<int, kRuns>{};
  if (same_order && successor.step.log.empty()) return logs;
  const All& before = all_[logs];
  All after{};
  for (int run = 0; run < kRuns; ++run) {
    const Permutation& to = kAllPermutations[successor.permutation[run]];
    for (int rank = 0; rank < kRanks; ++rank) {
      uint32_t log = before[run][rank];
      for (const Step::Log& added : successor.step.log) {
        if (added.run == run && added.rank == rank) {
          log = Append(log, added.record);
        }
      }
      after[run][to[rank]] = log;
    }
  }
  return Keep(after);
}

std::string RankLogs::Check(uint32_t logs) {
  if (checked_.size() <= logs) checked_.resize(logs + 1);
  if (checked_[logs]) return "";
  checked_[logs] = true;
  ++num_checked_;
  std::vector<RankHistory> histories;
  std::map<int64_t, PlacementRecord> placements;
  for (int rank = 0; rank < kRanks; ++rank) {
    RankHistory& history = histories.emplace_back();
    history.rank = RankId{rank};
    for (int run = 0; run < kRuns; ++run) {
      std::vector<HistoryRecord> records;
      for (uint32_t at = all_[logs][run][rank]; at != 0; at = ends_[at].before) {
        HistoryRecord record = ends_[at].record;
        record.rank = RankId{rank};
        record.run_id = RunName(run);
        if (record.kind == Kind::kStart || record.kind == Kind::kCommit) {
          const Placement* placement = FindPlacement(record.digest);
          if (placement == nullptr) return "I3: a rank runs a placement that nobody proposed";
          const int64_t first_step = record.kind == Kind::kStart ? 0 : record.step + 1;
          placements.try_emplace(record.version, PlacementRecord{first_step, record.version,
                                                                 record.digest, *placement});
        }
        records.push_back(std::move(record));
      }
      history.records.insert(history.records.end(), records.rbegin(), records.rend());
    }
  }
  std::vector<PlacementRecord> in_force;
  for (const auto& [version, record] : placements) in_force.push_back(record);
  const std::vector<std::string> violations = FindViolations(histories, in_force);
  return violations.empty() ? "" : violations.front();
}

}  // namespace eplb::explorer
