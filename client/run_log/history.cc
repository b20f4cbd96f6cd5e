#include "client/run_log/history.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

using Kind = HistoryRecord::Kind;

constexpr int64_t kMaxStep = int64_t{1} << 62;

// The step after `step`, for any number that a log may hold.
int64_t After(int64_t step) { return step < kMaxStep ? step + 1 : kMaxStep; }

std::string Short(const Digest& digest) { return digest.Hex().substr(0, 12); }

std::string Name(int64_t version, const Digest& digest) {
  return absl::StrCat("version ", version, " (digest ", Short(digest), ")");
}

std::string Steps(int64_t first, int64_t last) {
  if (first == last) return absl::StrCat("step ", first);
  return absl::StrCat("steps ", first, "..", last);
}

// Runs that another one followed in some rank's log. placements.jsonl begins anew with each
// run, so it says nothing about these.
std::set<std::string> FindSuperseded(std::span<const RankHistory> ranks) {
  std::set<std::string> superseded;
  for (const RankHistory& history : ranks) {
    const HistoryRecord* last_start = nullptr;
    for (const HistoryRecord& record : history.records) {
      if (record.kind != Kind::kStart) continue;
      if (last_start != nullptr && last_start->run_id != record.run_id) {
        superseded.insert(last_start->run_id);
      }
      last_start = &record;
    }
  }
  return superseded;
}

// Content of the placement records, once they are checked themselves.
struct Recorded {
  std::map<int64_t, std::set<int64_t>> first_steps;  // by version
  std::set<std::array<uint8_t, 32>> digests;
  std::set<std::string> superseded;  // runs that the records need not cover
};

Recorded CheckPlacements(std::span<const PlacementRecord> placements,
                         std::vector<std::string>& violations) {
  Recorded recorded;
  for (size_t i = 0; i < placements.size(); ++i) {
    const PlacementRecord& record = placements[i];
    const std::string where = absl::StrCat("placement record ", i, " (version ", record.version,
                                           " from step ", record.first_step, ")");
    if (const absl::Status same =
            CheckSameTopology("first", placements.front().placement.topology(), "recorded",
                              record.placement.topology());
        !same.ok()) {
      violations.push_back(
          absl::StrCat(where, " has another shape: ", std::string(same.message())));
    }
    if (const Digest actual = DigestOf(record.placement); actual != record.digest) {
      violations.push_back(absl::StrCat(where, " has digest ", Short(record.digest),
                                        ", but its placement has ", Short(actual)));
    }
    if (!recorded.first_steps.empty() && !recorded.first_steps.contains(record.version) &&
        record.version < recorded.first_steps.rbegin()->first) {
      violations.push_back(absl::StrCat(where, " is new, but below version ",
                                        recorded.first_steps.rbegin()->first, " before it"));
    }
    recorded.first_steps[record.version].insert(record.first_step);
    recorded.digests.insert(record.digest.bytes);
  }
  return recorded;
}

// Walks the log of one rank.
class RankCheck {
 public:
  RankCheck(RankId rank, const Recorded& recorded, std::vector<std::string>& violations)
      : who_(absl::StrCat("rank ", rank.value)),
        rank_(rank),
        recorded_(recorded),
        violations_(violations) {}

  void Check(const HistoryRecord& record, size_t index) {
    if (record.rank != rank_) {
      Report("has a record of rank ", record.rank.value, " in its log (record ", index, ")");
      return;
    }
    if (record.kind == Kind::kStart) {
      CheckStart(record);
      return;
    }
    CheckRunning(record, index);
    switch (record.kind) {
      case Kind::kPrepared:
        prepared_[record.version] = record.digest;
        failed_votes_.erase(record.version);
        break;
      case Kind::kVote:
        CountVote(record);
        break;
      case Kind::kDrop:
        prepared_.erase(record.version);
        break;
      case Kind::kCommit:
        CheckCommit(record);
        break;
      case Kind::kStep:
        CheckSteps(record);
        break;
      case Kind::kStop:
        CheckNextStep(absl::StrCat("stopped after step ", record.step), record, After(record.step));
        run_id_.reset();
        break;
      case Kind::kStart:
        break;  // handled above
    }
  }

 private:
  template <class... Parts>
  void Report(const Parts&... parts) {
    violations_.push_back(absl::StrCat(who_, " ", parts...));
  }

  void CheckStart(const HistoryRecord& record) {
    if (!started_.insert(record.run_id).second) {
      Report("starts run ", record.run_id, " twice, again at step ", record.step);
    }
    if (!versions_.empty() && !versions_.contains(record.version) &&
        record.version < *versions_.rbegin()) {
      Report("starts run ", record.run_id, " at step ", record.step, " under version ",
             record.version, ", which it never had, below version ", *versions_.rbegin());
    }
    run_id_ = record.run_id;
    prepared_.clear();
    failed_votes_.clear();
    next_step_ = record.step;
    Run(record);
  }

  void CheckRunning(const HistoryRecord& record, size_t index) {
    if (run_id_ == record.run_id) return;
    const std::string running = run_id_.has_value() ? absl::StrCat("run ", *run_id_, " is running")
                                                    : std::string("none is running");
    Report("has a record of run ", record.run_id, " at step ", record.step, " (record ", index,
           "), but ", running);
    run_id_ = record.run_id;
    next_step_.reset();
    running_.reset();
  }

  void CountVote(const HistoryRecord& record) {
    if (record.passed) {
      failed_votes_.erase(record.version);
    } else {
      failed_votes_.insert(record.version);
    }
  }

  void CheckCommit(const HistoryRecord& record) {
    const std::string did = absl::StrCat("committed ", Name(record.version, record.digest),
                                         " after step ", record.step);
    CheckNextStep(did, record, After(record.step));
    const auto ready = prepared_.find(record.version);
    if (ready == prepared_.end()) {
      Report(did, " without PREPARED for it before");
    } else if (ready->second != record.digest) {
      Report(did, ", but was PREPARED for digest ", Short(ready->second));
    }
    if (failed_votes_.contains(record.version)) Report(did, " although the vote on it failed");
    if (!versions_.empty() && record.version <= *versions_.rbegin()) {
      Report(did, ", not above version ", *versions_.rbegin(), " before it");
    }
    CheckFirstStep(did, record);
    Run(record);
  }

  void CheckSteps(const HistoryRecord& record) {
    const std::string did = absl::StrCat("ran ", Steps(record.step, record.last_step), " under ",
                                         Name(record.version, record.digest));
    if (record.step < 0 || record.last_step < record.step || record.last_step > kMaxStep) {
      Report(did, ", which is no range of steps");
      return;
    }
    CheckNextStep(did, record, record.step);
    next_step_ = After(record.last_step);
    if (running_.has_value() && *running_ != std::pair(record.version, record.digest)) {
      Report(did, " while ", Name(running_->first, running_->second), " was current");
    }
    if (!recorded_.superseded.contains(record.run_id) &&
        !recorded_.digests.contains(record.digest.bytes) &&
        unrecorded_.insert(record.digest.bytes).second) {
      Report(did, ", which has no placement record");
    }
    Run(record);
  }

  void CheckFirstStep(const std::string& did, const HistoryRecord& record) {
    if (recorded_.superseded.contains(record.run_id)) return;
    const auto recorded = recorded_.first_steps.find(record.version);
    if (recorded == recorded_.first_steps.end()) return;
    if (recorded->second.contains(After(record.step))) return;
    Report(did, ", but its placement record begins at step ", *recorded->second.begin());
  }

  // `next`: the step that the record takes for the next one.
  void CheckNextStep(const std::string& did, const HistoryRecord& record, int64_t next) {
    if (next_step_.has_value() && *next_step_ != next) {
      Report(did, " in run ", record.run_id, ", where step ", *next_step_, " was next");
    }
    next_step_ = next;
  }

  void Run(const HistoryRecord& record) {
    running_ = {record.version, record.digest};
    versions_.insert(record.version);
  }

  const std::string who_;
  const RankId rank_;
  const Recorded& recorded_;
  std::vector<std::string>& violations_;
  std::optional<std::string> run_id_;
  std::optional<int64_t> next_step_;
  std::optional<std::pair<int64_t, Digest>> running_;
  std::map<int64_t, Digest> prepared_;
  std::set<int64_t> failed_votes_;
  std::set<int64_t> versions_;     // versions that this rank ran or committed, over all runs
  std::set<std::string> started_;  // runs
  std::set<std::array<uint8_t, 32>> unrecorded_;  // digests told already
};

// Compares ranks: the first to say something is what the others are held against.
class JobCheck {
 public:
  explicit JobCheck(std::vector<std::string>& violations) : violations_(violations) {}

  void AddPlacement(const PlacementRecord& record, size_t index) {
    ClaimDigest(record.version, record.digest, absl::StrCat("in placement record ", index));
  }

  void Add(const HistoryRecord& record) {
    switch (record.kind) {
      case Kind::kStart:
        ClaimDigest(record);
        CompareStart(record);
        break;
      case Kind::kPrepared:
        ClaimDigest(record);
        break;
      case Kind::kCommit:
        ClaimDigest(record);
        CompareCommit(record);
        break;
      case Kind::kStep:
        AddSteps(record);
        break;
      case Kind::kVote:
      case Kind::kDrop:
      case Kind::kStop:
        break;  // nothing in them concerns another rank
    }
  }

 private:
  struct Range {
    int64_t last;
    const HistoryRecord* record;
  };

  void ClaimDigest(const HistoryRecord& record) {
    ClaimDigest(record.version, record.digest, absl::StrCat("on rank ", record.rank.value));
  }

  void ClaimDigest(int64_t version, const Digest& digest, const std::string& where) {
    const auto [claim, first] = digest_of_.try_emplace(version, digest, where);
    if (first || claim->second.first == digest) return;
    violations_.push_back(absl::StrCat("version ", version, " has digest ",
                                       Short(claim->second.first), " ", claim->second.second,
                                       " and digest ", Short(digest), " ", where));
  }

  void CompareStart(const HistoryRecord& record) {
    const auto [start, first] = starts_.try_emplace(record.run_id, &record);
    const HistoryRecord& other = *start->second;
    if (first || other.rank == record.rank) return;
    if (std::tie(other.step, other.version, other.digest.bytes) ==
        std::tie(record.step, record.version, record.digest.bytes)) {
      return;
    }
    violations_.push_back(absl::StrCat("run ", record.run_id, " starts at step ", other.step,
                                       " under ", Name(other.version, other.digest), " on rank ",
                                       other.rank.value, ", but at step ", record.step, " under ",
                                       Name(record.version, record.digest), " on rank ",
                                       record.rank.value));
  }

  void CompareCommit(const HistoryRecord& record) {
    const auto [commit, first] = commits_.try_emplace(record.version, &record);
    const HistoryRecord& other = *commit->second;
    if (first) return;
    if (other.run_id != record.run_id) {
      violations_.push_back(absl::StrCat(
          "version ", record.version, " was committed in run ", other.run_id, " after step ",
          other.step, " by rank ", other.rank.value, " and again in run ", record.run_id,
          " after step ", record.step, " by rank ", record.rank.value));
    } else if (other.step != record.step) {
      violations_.push_back(absl::StrCat("version ", record.version, " of run ", record.run_id,
                                         " was committed after step ", other.step, " by rank ",
                                         other.rank.value, ", but after step ", record.step,
                                         " by rank ", record.rank.value));
    }
  }

  // Compares the range with what is known of its steps and adds those of which nothing is.
  void AddSteps(const HistoryRecord& record) {
    if (record.step < 0 || record.last_step < record.step || record.last_step > kMaxStep) return;
    std::map<int64_t, Range>& timeline = timelines_[record.run_id];
    int64_t at = record.step;
    auto known = timeline.upper_bound(at);
    if (known != timeline.begin() && std::prev(known)->second.last >= at) --known;
    while (at <= record.last_step) {
      if (known == timeline.end() || known->first > record.last_step) {
        timeline.emplace_hint(known, at, Range{record.last_step, &record});
        return;
      }
      if (known->first > at) {
        timeline.emplace_hint(known, at, Range{known->first - 1, &record});
        at = known->first;
      }
      const int64_t last = std::min(known->second.last, record.last_step);
      CompareSteps(at, last, *known->second.record, record);
      at = last + 1;
      ++known;
    }
  }

  void CompareSteps(int64_t first, int64_t last, const HistoryRecord& a, const HistoryRecord& b) {
    if (a.version == b.version && a.digest == b.digest) return;
    violations_.push_back(absl::StrCat("run ", a.run_id, " ran ", Steps(first, last), " under ",
                                       Name(a.version, a.digest), " on rank ", a.rank.value,
                                       " and under ", Name(b.version, b.digest), " on rank ",
                                       b.rank.value));
  }

  std::vector<std::string>& violations_;
  std::map<int64_t, std::pair<Digest, std::string>> digest_of_;  // by version, and who says so
  std::map<std::string, const HistoryRecord*> starts_;           // by run
  std::map<int64_t, const HistoryRecord*> commits_;              // by version
  std::map<std::string, std::map<int64_t, Range>> timelines_;    // by run and first step
};

}  // namespace

std::vector<std::string> FindViolations(std::span<const RankHistory> ranks,
                                        std::span<const PlacementRecord> placements) {
  std::vector<std::string> violations;
  Recorded recorded = CheckPlacements(placements, violations);
  recorded.superseded = FindSuperseded(ranks);
  std::set<RankId> seen;
  for (const RankHistory& history : ranks) {
    if (!seen.insert(history.rank).second) {
      violations.push_back(absl::StrCat("rank ", history.rank.value, " has two logs"));
    }
    RankCheck check(history.rank, recorded, violations);
    for (size_t i = 0; i < history.records.size(); ++i) check.Check(history.records[i], i);
  }
  JobCheck job(violations);
  for (size_t i = 0; i < placements.size(); ++i) job.AddPlacement(placements[i], i);
  for (const RankHistory& history : ranks) {
    for (const HistoryRecord& record : history.records) job.Add(record);
  }
  return violations;
}

}  // namespace eplb
