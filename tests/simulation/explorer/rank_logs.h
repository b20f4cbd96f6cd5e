// Logs that the ranks wrote on the way to each state, for the validator that all tests share
// (client/run_log/history.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "client/run_log/history.h"
#include "tests/simulation/explorer/interned.h"
#include "tests/simulation/explorer/world.h"

namespace eplb::explorer {

// Logs are shared where they begin alike; a number stands for the logs of all ranks together. A
// state has those of the first way that led to it.
class RankLogs {
 public:
  uint32_t Start(const World& start);
  uint32_t After(uint32_t logs, const Successor& successor);
  // FindViolations on these logs, once; the first violation, or nothing.
  std::string Check(uint32_t logs);

  size_t size() const { return all_.size(); }
  uint64_t num_checked() const { return num_checked_; }

 private:
  using All = std::array<std::array<uint32_t, kRanks>, kRuns>;  // ends of logs

  struct End {
    uint32_t before = 0;  // 0: the log begins here
    HistoryRecord record;
    int64_t next_step = 0;
    int64_t version = 0;  // running
    Digest digest;
  };

  uint32_t Append(uint32_t log, HistoryRecord record);
  uint32_t Keep(const All& all);

  Interned<End> ends_;
  Interned<All> all_;
  std::vector<bool> checked_;
  uint64_t num_checked_ = 0;
};

}  // namespace eplb::explorer
