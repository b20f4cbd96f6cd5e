#include "client/run_log.h"

#include <nlohmann/json.hpp>

namespace eplb {

std::string RunLogLineToJson(const RunLogLine& line, int32_t rank, std::string_view incarnation) {
  const nlohmann::ordered_json json = {{"event", line.event},         {"rank", rank},
                                       {"incarnation", incarnation},  {"step", line.step},
                                       {"last_step", line.last_step}, {"version", line.version},
                                       {"digest", line.digest.Hex()}, {"ok", line.ok},
                                       {"reason", line.reason}};
  // A reason with bytes that are not UTF-8 is written with replacement characters.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void RunLog::Write(const RunLogLine& line) {
  if (file_.is_open()) file_.Write(RunLogLineToJson(line, rank_, incarnation_));
}

void RunLog::WriteReady(const RunLogLine& line) {
  const std::lock_guard lock(stop_mutex_);
  if (!stopped_) Write(line);
}

void RunLog::WriteStop(const RunLogLine& line) {
  const std::lock_guard lock(stop_mutex_);
  stopped_ = true;
  Write(line);
}

void RunLog::AddStep(int64_t step, int64_t version, const Digest& digest) {
  const bool continues = pending_ && steps_.last_step + 1 == step && steps_.version == version &&
                         steps_.digest == digest;
  if (continues) {
    steps_.last_step = step;
    return;
  }
  FlushSteps();
  pending_ = true;
  steps_ = {.event = "steps",
            .step = step,
            .last_step = step,
            .version = version,
            .digest = digest,
            .ok = true,
            .reason = ""};
}

void RunLog::FlushSteps() {
  if (pending_) Write(steps_);
  pending_ = false;
}

}  // namespace eplb
