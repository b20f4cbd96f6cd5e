// Finds the files of a run's directory and reads them together.
#include "client/run_log/run_directory.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/load_file.h"

namespace eplb {
namespace {

constexpr int32_t kMaxRunRanks = 1 << 20;

std::string HistoryPath(const std::string& directory, int32_t rank) {
  return absl::StrCat(directory, "/rank-", rank, ".jsonl");
}

// Returns the highest rank with a log, plus 1; at least 1, because rank 0 must have one.
int32_t CountLogs(const std::string& directory) {
  int32_t count = 1;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    absl::string_view number = name;
    int32_t rank = 0;
    if (!absl::ConsumePrefix(&number, "rank-") || !absl::ConsumeSuffix(&number, ".jsonl")) continue;
    if (absl::SimpleAtoi(number, &rank) && rank < kMaxRunRanks) count = std::max(count, rank + 1);
  }
  return count;
}

absl::StatusOr<std::vector<RankHistory>> ReadHistories(const std::string& directory,
                                                       int32_t world_size) {
  std::vector<RankHistory> histories;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    const std::string path = HistoryPath(directory, rank);
    EPLB_ASSIGN_OR_RETURN(RankHistory history, ReadHistoryFile(path));
    if (history.rank.value != rank) {
      return InvalidInput(path, ": is the log of rank ", history.rank.value);
    }
    histories.push_back(std::move(history));
  }
  return histories;
}

absl::StatusOr<std::vector<Load>> ReadStepLoads(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(LoadFile file, ReadLoadFile(path));
  std::vector<Load> loads;
  for (LoadWindow& window : file.windows) {
    const auto expected = static_cast<int64_t>(loads.size());
    if (window.first_step != expected || window.last_step != expected) {
      return InvalidInput(path, ": line ", expected + 1, " covers steps ", window.first_step, "..",
                          window.last_step, ", expected only step ", expected);
    }
    loads.push_back(std::move(window.load));
  }
  return loads;
}

absl::StatusOr<LoggedEvent> EventFrom(const wire::JsonValue& object) {
  LoggedEvent event;
  EPLB_ASSIGN_OR_RETURN(event.sequence, wire::GetInteger(object, "sequence"));
  EPLB_ASSIGN_OR_RETURN(event.unix_micros, wire::GetInteger(object, "unix_micros"));
  EPLB_ASSIGN_OR_RETURN(event.name, wire::GetString(object, "name"));
  EPLB_ASSIGN_OR_RETURN(event.reason, wire::GetString(object, "reason"));
  EPLB_ASSIGN_OR_RETURN(event.actor, wire::GetString(object, "actor"));
  EPLB_ASSIGN_OR_RETURN(event.before, wire::GetString(object, "before"));
  EPLB_ASSIGN_OR_RETURN(event.after, wire::GetString(object, "after"));
  return event;
}

absl::StatusOr<LoggedEvents> EventsFrom(const wire::JsonValue& document) {
  LoggedEvents result;
  EPLB_ASSIGN_OR_RETURN(result.job, wire::GetString(document, "job"));
  const wire::JsonValue* events = document.Find("events");
  if (events == nullptr || !events->is_array()) {
    return InvalidInput("events is missing or not an array");
  }
  const int64_t entries = events->numbers.children.front().front();
  if (entries != static_cast<int64_t>(events->objects.size())) {
    return InvalidInput("events is no array of objects");
  }
  for (size_t i = 0; i < events->objects.size(); ++i) {
    EPLB_ASSIGN_OR_RETURN(LoggedEvent event,
                          InFile(absl::StrCat("events[", i, "]"), EventFrom(events->objects[i])));
    result.events.push_back(std::move(event));
  }
  std::ranges::sort(result.events, {}, &LoggedEvent::sequence);
  return result;
}

// Reads the answer of `eplbctl report --job NAME -o json`; none if there was no answer.
absl::StatusOr<std::optional<LoggedAccount>> ReadAccount(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  if (text.empty()) return std::nullopt;
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue job, InFile(path, wire::ParseJson(text)));
  LoggedAccount account;
  EPLB_ASSIGN_OR_RETURN(account.run_id, InFile(path, wire::GetString(job, "run_id")));
  EPLB_ASSIGN_OR_RETURN(account.saved_basis, InFile(path, wire::GetString(job, "saved_basis")));
  const auto number = [&job](const char* key) {
    const wire::JsonValue* value = job.Find(key);
    using Json = wire::JsonValue::Kind;
    const bool known =
        value != nullptr && (value->kind == Json::kInteger || value->kind == Json::kReal);
    return known ? std::optional(value->real) : std::nullopt;
  };
  account.saved_seconds = number("saved_seconds");
  account.spent_seconds = number("spent_seconds");
  const wire::JsonValue* assumed = job.Find("saved_is_assumed");
  account.saved_is_assumed = assumed != nullptr && assumed->boolean;
  return account;
}

// Checks what the reports of a run assume of its files together.
absl::Status CheckTogether(const std::string& directory, const RunDirectory& run) {
  const std::string path = directory + "/placements.jsonl";
  const std::vector<LoggedPlacement>& placements = run.placements;
  if (placements.empty()) return InvalidInput(path, ": has no record");
  if (placements.front().step != 0) {
    return InvalidInput(path, ": its first placement begins at step ", placements.front().step,
                        ", expected 0");
  }
  for (const LoggedPlacement& placement : placements) {
    if (placement.decided_last_step < std::ssize(run.step_loads)) continue;
    return InvalidInput(directory, "/loads.jsonl: has ", run.step_loads.size(),
                        " steps, the decision on version ", placement.version,
                        " of placements.jsonl covers steps up to ", placement.decided_last_step);
  }
  for (const SwitchRecord& change : run.report.switches) {
    const auto found = std::ranges::find(placements, change.version, &LoggedPlacement::version);
    if (found != placements.begin() && found != placements.end()) continue;
    return InvalidInput(path, ": lacks version ", change.version,
                        " or its predecessor, and run.json has a switch to it");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoggedEvents> ReadEventsFile(const std::string& path, const std::string& job) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue document, InFile(path, wire::ParseJson(text)));
  EPLB_ASSIGN_OR_RETURN(LoggedEvents events, InFile(path, EventsFrom(document)));
  if (events.job == job) return events;
  return InvalidInput(path, ": is the audit log of job ", Printable(events.job),
                      ", the run is of job ", Printable(job));
}

absl::StatusOr<RunLogs> ReadRunLogs(const std::string& directory) {
  RunLogs logs;
  int32_t world_size = CountLogs(directory);
  std::error_code error;
  if (const std::string path = directory + "/run.json"; std::filesystem::exists(path, error)) {
    EPLB_ASSIGN_OR_RETURN(const RunReport report, ReadRunReport(path));
    world_size = report.world_size;
    logs.has_report = true;
  }
  EPLB_ASSIGN_OR_RETURN(logs.histories, ReadHistories(directory, world_size));
  EPLB_ASSIGN_OR_RETURN(logs.placements, ReadPlacementsLog(directory + "/placements.jsonl"));
  return logs;
}

absl::StatusOr<std::vector<RankTimeline>> ReadTimelines(const std::string& directory) {
  std::vector<RankTimeline> timelines;
  const int32_t world_size = CountLogs(directory);
  for (int32_t rank = 0; rank < world_size; ++rank) {
    EPLB_ASSIGN_OR_RETURN(RankTimeline timeline,
                          ReadTimelineFile(HistoryPath(directory, rank), RankId{rank}));
    timelines.push_back(std::move(timeline));
  }
  return timelines;
}

std::vector<PlacementRecord> RecordsOf(const std::vector<LoggedPlacement>& placements) {
  std::vector<PlacementRecord> records;
  records.reserve(placements.size());
  for (const LoggedPlacement& placement : placements) {
    records.push_back({placement.step, placement.version, placement.digest, placement.placement});
  }
  return records;
}

absl::StatusOr<RunDirectory> ReadRunDirectory(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return NotFound(directory, ": no such directory");
  }
  RunDirectory run;
  EPLB_ASSIGN_OR_RETURN(run.report, ReadRunReport(directory + "/run.json"));
  EPLB_ASSIGN_OR_RETURN(run.histories, ReadHistories(directory, run.report.world_size));
  EPLB_ASSIGN_OR_RETURN(run.placements, ReadPlacementsLog(directory + "/placements.jsonl"));
  const std::string events = directory + "/events.json";
  if (std::filesystem::exists(events, error)) {
    EPLB_ASSIGN_OR_RETURN(run.events, ReadEventsFile(events, run.report.job));
  }
  const std::string job = directory + "/job.json";
  if (std::filesystem::exists(job, error)) {
    EPLB_ASSIGN_OR_RETURN(run.account, ReadAccount(job));
  }
  EPLB_ASSIGN_OR_RETURN(run.step_loads, ReadStepLoads(directory + "/loads.jsonl"));
  EPLB_RETURN_IF_ERROR(CheckTogether(directory, run));
  return run;
}

}  // namespace eplb
