// A trace that ui.perfetto.dev and chrome://tracing show: spans on tracks of processes, in the JSON
// that PyTorch's profiler writes, too.
// threads: safe, no shared state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/terminal.h"

#include <nlohmann/json.hpp>

namespace eplb::v1 {
class Plan;
}

namespace eplb::cli {

// Above the numbers of an operating system's processes (at most 2^22) and of GPUs, which a trace of
// PyTorch has, so that both can stand in one file.
inline constexpr int64_t kDaemonProcess = 9'999'999;
inline constexpr int64_t kFirstRankProcess = 10'000'000;

// A line of a process, on which spans lie in each other or beside each other.
struct Track {
  int64_t process = 0;
  int64_t index = 0;  // in the process, from 0 in the order shown
};

struct TraceSpan {
  Track track;
  std::string name;
  int64_t unix_micros = 0;
  std::optional<int64_t> micros = {};  // >= 0; none for something that takes no time
  nlohmann::ordered_json args = nlohmann::ordered_json::object();
};

class TraceFile {
 public:
  // Processes are shown in the order of their numbers.
  void NameProcess(int64_t process, const std::string& name);
  void NameTrack(Track track, const std::string& name);
  void Add(TraceSpan span);

  // {"displayTimeUnit":"ms","baseTimeNanoseconds":0,"metadata":{..},"traceEvents":[..]}, an event a
  // line: names first, then by time, a span before those in it. "ts" and "dur" are microseconds on
  // the wall clock, CLOCK_REALTIME. Any text is allowed in names; bytes that are not UTF-8 are
  // replaced. cost: O(events log events).
  std::string ToJson(const nlohmann::ordered_json& metadata) const;

 private:
  std::vector<nlohmann::ordered_json> names_;
  std::vector<TraceSpan> events_;
};

// ---- the times of one decision, as the daemon saw them

// One process, the daemon: the window, the solver, each chunk with its ranks' PREPARED and their
// vote and switch, and a track for each rank that is known by name, in the daemon's time. Only the
// rank knows when its boundary was within "vote and switch". It shows only what is known to have
// happened; "not_known" in its metadata lists what is missing. plan: an answer of GetPlan.
std::string PlanTrace(const std::string& job, const v1::Plan& plan);

// When each part began and how long it took.
std::string TimesTable(const v1::Plan& plan, const Terminal& terminal);

}  // namespace eplb::cli
