// A rank's own log of what it ran and decided, for the validator of the protocol's promises.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "client/run_log/boundary_times.h"
#include "placement/digest.h"

namespace eplb {

// A file that gets whole lines, each in one write.

// Opened with O_APPEND, so that lines of several threads do not mix. A line that cannot be written
// is told on stderr once; training goes on. Threads: Write is safe.
class LineFile {
 public:
  // Writes nothing.
  LineFile() = default;
  // Creates the file when there is none, and appends to it else. errors: Unavailable, naming the
  // path.
  static absl::StatusOr<LineFile> Open(const std::string& path);
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&& other) noexcept;
  ~LineFile();

  bool is_open() const { return descriptor_ >= 0; }
  // Drops the lines of earlier runs. errors: Unavailable, naming the path.
  absl::Status Clear();
  // line: without the newline.
  void Write(std::string line);

 private:
  std::string path_;
  int descriptor_ = -1;
  std::atomic<bool> told_ = false;
};

// JSON lines, one write each:
// {"event":"start|ready|vote|commit|drop|steps|stop","rank":0,"run_id":"..","step":17,
//  "last_step":24,"version":3,"digest":"<hex>","ok":true,"reason":".."}
// start  the first version and digest
// ready  this rank became PREPARED for version and digest; before its Ready left
// vote   a vote with a target had a result, ok = agreed; or a vote failed (ok false, reason;
// version
//        0 without a target)
// boundary  when this rank did what in a boundary at which it was PREPARED: BoundaryTimesToJson
// commit, drop  version and digest were switched to, or given up
// steps  ran [step, last_step] under version and digest; written before each vote and at the stop
// stop   the run ended on this rank; reason
// step: in "start" the first step to run, in "steps" the first of the range, else the last step
// that ran before (in "ready" as far as the session's thread knows; -1 in "stop" when none ran).
// "ready" has "unix_micros", too: when, on the wall clock.
// See client/run_log/history.h.
struct RunLogLine {
  std::string_view event;
  int64_t step = 0;
  int64_t last_step = step;  // another one in "steps"
  int64_t version = 0;
  Digest digest = {};
  bool ok = true;
  std::string_view reason = {};
  int64_t unix_micros = 0;  // 0: the line has no time
};

std::string RunLogLineToJson(const RunLogLine& line, int32_t rank, std::string_view run_id);

// Threads: Write from any; the others from the training thread.
class RunLog {
 public:
  RunLog(LineFile file, int32_t rank, std::string run_id)
      : file_(std::move(file)), rank_(rank), run_id_(std::move(run_id)) {}

  bool is_open() const { return file_.is_open(); }
  void Write(const RunLogLine& line);
  void WriteBoundary(const BoundaryTimes& times);
  // "ready", from the session's thread, and "stop", the last line: a rank that became PREPARED
  // while it stopped says nothing of it.
  void WriteReady(const RunLogLine& line);
  void WriteStop(const RunLogLine& line);

  // A step ran under version and digest; consecutive steps under the same make one "steps" line.
  void AddStep(int64_t step, int64_t version, const Digest& digest);
  // Writes the "steps" line that is pending, if any.
  void FlushSteps();

 private:
  LineFile file_;
  std::mutex stop_mutex_;
  bool stopped_ = false;  // guarded by stop_mutex_
  int32_t rank_;
  std::string run_id_;
  bool pending_ = false;
  RunLogLine steps_;
};

}  // namespace eplb
