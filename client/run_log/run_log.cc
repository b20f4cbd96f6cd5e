#include "client/run_log/run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/file_size_signal.h"
#include "base/foreign_text.h"
#include "client/session/log_line.h"

#include <nlohmann/json.hpp>

namespace eplb {

absl::StatusOr<LineFile> LineFile::Open(const std::string& path) {
  LineFile file;
  file.path_ = path;
  file.descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file.descriptor_ < 0) return Unavailable(path, ": ", std::strerror(errno));
  return file;
}

LineFile::LineFile(LineFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      told_(other.told_.load()) {}

LineFile& LineFile::operator=(LineFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  told_ = other.told_.load();
  return *this;
}

LineFile::~LineFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status LineFile::Clear() {
  if (descriptor_ < 0 || ftruncate(descriptor_, 0) == 0) return absl::OkStatus();
  return Unavailable(path_, ": ", std::strerror(errno));
}

void LineFile::Write(std::string line) {
  if (descriptor_ < 0) return;
  line += '\n';
  const WithoutFileSizeSignal guard;
  const ssize_t written = write(descriptor_, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size()) || told_.exchange(true)) return;
  LogLine(absl::StrCat(path_, ": a line could not be written: ",
                       written < 0 ? std::strerror(errno) : "no room for all of it"));
}

std::string RunLogLineToJson(const RunLogLine& line, int32_t rank, std::string_view run_id) {
  nlohmann::ordered_json json = {{"event", line.event},
                                 {"rank", rank},
                                 {"run_id", run_id},
                                 {"step", line.step},
                                 {"last_step", line.last_step},
                                 {"version", line.version},
                                 {"digest", line.digest.Hex()},
                                 {"ok", line.ok},
                                 {"reason", line.reason}};
  if (line.unix_micros != 0) json["unix_micros"] = line.unix_micros;
  // A reason with bytes that are not UTF-8 is written with replacement characters.
  return EscapedJson(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void RunLog::Write(const RunLogLine& line) {
  if (file_.is_open()) file_.Write(RunLogLineToJson(line, rank_, run_id_));
}

void RunLog::WriteBoundary(const BoundaryTimes& times) {
  if (file_.is_open()) file_.Write(BoundaryTimesToJson(times, rank_, run_id_));
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
  steps_ = {.event = "steps", .step = step, .version = version, .digest = digest, .ok = true};
}

void RunLog::FlushSteps() {
  if (pending_) Write(steps_);
  pending_ = false;
}

}  // namespace eplb
