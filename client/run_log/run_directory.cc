#include "client/run_log/run_directory.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/files.h"
#include "base/foreign_text.h"
#include "base/json_or_null.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/load_file.h"
#include "placement/figure_mean.h"
#include "proto/wire/messages.h"

#include <nlohmann/json.hpp>

namespace eplb {

namespace {

using Kind = HistoryRecord::Kind;

constexpr std::pair<std::string_view, Kind> kEvents[] = {
    {"start", Kind::kStart},   {"ready", Kind::kPrepared}, {"vote", Kind::kVote},
    {"commit", Kind::kCommit}, {"drop", Kind::kDrop},      {"steps", Kind::kStep},
    {"stop", Kind::kStop}};

absl::StatusOr<Kind> KindOf(const std::string& event) {
  for (const auto& [name, kind] : kEvents) {
    if (name == event) return kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("event is ", wire::JsonQuote(event),
                   ", expected start, ready, vote, commit, drop, steps or stop"));
}

absl::StatusOr<int64_t> GetNatural(const wire::JsonValue& object, std::string_view key) {
  EPLB_ASSIGN_OR_RETURN(const int64_t number, wire::GetInteger(object, key));
  if (number >= 0) return number;
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(key), " is ", number, ", expected >= 0"));
}

// A line for traces, which the validator does not read.
bool IsBoundary(const wire::JsonValue& object) {
  const wire::JsonValue* const event = object.Find("event");
  return event != nullptr && event->kind == wire::JsonValue::Kind::kString &&
         event->text == "boundary";
}

absl::StatusOr<HistoryRecord> RecordFrom(const wire::JsonValue& object) {
  HistoryRecord record;
  EPLB_ASSIGN_OR_RETURN(const std::string event, wire::GetString(object, "event"));
  EPLB_ASSIGN_OR_RETURN(record.kind, KindOf(event));
  EPLB_ASSIGN_OR_RETURN(const int64_t rank, GetNatural(object, "rank"));
  if (rank > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("rank is ", rank, ", expected 0..2^31-1"));
  }
  record.rank = RankId{static_cast<int32_t>(rank)};
  EPLB_ASSIGN_OR_RETURN(record.run_id, wire::GetString(object, "run_id"));
  if (record.kind == Kind::kStop) {
    EPLB_ASSIGN_OR_RETURN(record.step, wire::GetInteger(object, "step"));
    if (record.step < -1) {  // -1: it stopped before step 0
      return absl::InvalidArgumentError(absl::StrCat("step is ", record.step, ", expected >= -1"));
    }
  } else {
    EPLB_ASSIGN_OR_RETURN(record.step, GetNatural(object, "step"));
  }
  if (record.kind == Kind::kStep) {
    EPLB_ASSIGN_OR_RETURN(record.last_step, GetNatural(object, "last_step"));
    if (record.last_step < record.step) {
      return absl::InvalidArgumentError(
          absl::StrCat("last_step is ", record.last_step, ", below step ", record.step));
    }
  }
  if (record.kind == Kind::kVote) {
    const wire::JsonValue* passed = object.Find("ok");
    if (passed == nullptr || passed->kind != wire::JsonValue::Kind::kBool) {
      return absl::InvalidArgumentError("ok is missing or no boolean");
    }
    record.passed = passed->boolean;
  }
  if (record.kind == Kind::kStop) return record;
  EPLB_ASSIGN_OR_RETURN(record.version, GetNatural(object, "version"));
  EPLB_ASSIGN_OR_RETURN(const std::string hex, wire::GetString(object, "digest"));
  EPLB_ASSIGN_OR_RETURN(record.digest, Digest::FromHex(hex));
  return record;
}

}  // namespace

absl::StatusOr<RankHistory> ReadHistoryFile(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  RankHistory history;
  for (const TextLine& line : SplitLines(text)) {
    const absl::StatusOr<wire::JsonValue> object = wire::ParseJson(line.text);
    if (!object.ok() && !line.has_newline) break;
    if (!object.ok()) return InLine(path, line.number, object.status());
    if (IsBoundary(*object)) continue;
    absl::StatusOr<HistoryRecord> record = RecordFrom(*object);
    if (!record.ok()) return InLine(path, line.number, record.status());
    if (!history.records.empty() && record->rank != history.rank) {
      return InLine(path, line.number,
                    absl::InvalidArgumentError(absl::StrCat("rank is ", record->rank.value,
                                                            ", the records before are of rank ",
                                                            history.rank.value)));
    }
    history.rank = record->rank;
    history.records.push_back(*std::move(record));
  }
  if (history.records.empty()) return absl::InvalidArgumentError(path + ": has no record");
  return history;
}

namespace {

using Json = nlohmann::ordered_json;

constexpr char kRunFormat[] = "eplb.run.v1";

Json Summary(const RunReport& report) {
  FigureMean all, all_static, all_without, after, after_static;
  double peaks = 0, peaks_without = 0;
  for (const StepRecord& step : report.steps) {
    all.Add(step.balancedness);
    all_static.Add(step.balancedness_static);
    all_without.Add(step.balancedness_without_eplb);
    peaks += step.peak_tokens.value_or(0);
    peaks_without += step.peak_tokens_without_eplb.value_or(0);
    if (report.switches.empty() || step.step <= report.switches.front().step) continue;
    after.Add(step.balancedness);
    after_static.Add(step.balancedness_static);
  }
  int64_t bytes = 0;
  double pause = 0;
  for (const SwitchRecord& change : report.switches) {
    bytes += change.bytes_moved;
    pause = std::max(pause, change.pause_seconds);
  }
  return {{"balancedness_mean", JsonOrNull(all.Value())},
          {"balancedness_without_eplb_mean", JsonOrNull(all_without.Value())},
          {"balancedness_static_mean", JsonOrNull(all_static.Value())},
          {"time_saved", peaks_without > 0 ? Json(1 - peaks / peaks_without) : Json()},
          {"balancedness_mean_after_first_switch", JsonOrNull(after.Value())},
          {"balancedness_static_mean_after_first_switch", JsonOrNull(after_static.Value())},
          {"rebalances", CountRebalances(report.switches)},
          {"switches", report.switches.size()},
          {"bytes_moved", bytes},
          {"pause_seconds_max", pause}};
}

// Reads keys of one object; the first key that is missing or of another type is kept as the error.
class Fields {
 public:
  Fields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
    if (!object_.is_object())
      status_ = absl::InvalidArgumentError(absl::StrCat(place_, " is not an object"));
  }

  void Read(const char* key, std::string& out) {
    if (const Json* value = Find(key, "a string", &Json::is_string))
      out = value->get<std::string>();
  }
  void Read(const char* key, double& out) {
    if (const Json* value = Find(key, "a number", &Json::is_number)) out = value->get<double>();
  }
  template <class Integer>
  void Read(const char* key, Integer& out) {
    if (const Json* value = Find(key, "an integer", &Json::is_number_integer))
      out = value->get<Integer>();
  }
  // Null stands for a figure without a sample.
  void Read(const char* key, std::optional<double>& out) {
    if (const auto found = object_.find(key); found != object_.end() && found->is_null()) return;
    if (const Json* value = Find(key, "a number", &Json::is_number)) out = value->get<double>();
  }
  // Leaves `out` as it is if an older trainer did not write the key.
  void ReadIfThere(const char* key, std::optional<double>& out) {
    if (object_.contains(key)) Read(key, out);
  }
  const Json* Array(const char* key) { return Find(key, "an array", &Json::is_array); }

  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* key, const char* kind, bool (Json::*is_kind)() const noexcept) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(key);
    if (found != object_.end() && ((*found).*is_kind)()) return &*found;
    status_ =
        absl::InvalidArgumentError(absl::StrCat(place_, ": ", key, " is missing or not ", kind));
    return nullptr;
  }

  const Json& object_;
  std::string place_;
  absl::Status status_;
};

absl::StatusOr<SwitchRecord> SwitchFrom(const Json& object, size_t index) {
  SwitchRecord change;
  Fields fields(object, absl::StrCat("switches[", index, "]"));
  fields.Read("step", change.step);
  fields.Read("version", change.version);
  fields.Read("decided_first_step", change.decided_first_step);
  fields.Read("decided_last_step", change.decided_last_step);
  fields.Read("decision", change.decision);
  fields.Read("policy", change.policy);
  fields.Read("asked_by", change.asked_by);
  fields.Read("reason", change.reason);
  fields.Read("bytes_moved", change.bytes_moved);
  fields.Read("pause_seconds", change.pause_seconds);
  fields.Read("bytes_verified", change.bytes_verified);
  if (!fields.status().ok()) return fields.status();
  return change;
}

absl::StatusOr<StepRecord> StepFrom(const Json& object, size_t index) {
  StepRecord step;
  Fields fields(object, absl::StrCat("steps[", index, "]"));
  fields.Read("step", step.step);
  fields.Read("version", step.version);
  fields.Read("balancedness", step.balancedness);
  fields.Read("balancedness_static", step.balancedness_static);
  fields.ReadIfThere("balancedness_without_eplb", step.balancedness_without_eplb);
  fields.ReadIfThere("peak_tokens", step.peak_tokens);
  fields.ReadIfThere("peak_tokens_without_eplb", step.peak_tokens_without_eplb);
  fields.Read("began", step.began);
  fields.Read("seconds", step.seconds);
  fields.Read("boundary_seconds", step.boundary_seconds);
  fields.Read("work_seconds", step.work_seconds);
  if (!fields.status().ok()) return fields.status();
  return step;
}

absl::StatusOr<SplitMode> SplitFrom(const std::string& name) {
  for (const SplitMode split : {SplitMode::kEqual, SplitMode::kBatch}) {
    if (name == wire::SplitName(split)) return split;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("split is \"", name, "\", expected \"equal\" or \"batch\""));
}

absl::StatusOr<RunReport> ReportFrom(const Json& json) {
  RunReport report;
  Fields fields(json, "report");
  std::string format;
  fields.Read("format", format);
  fields.Read("job", report.job);
  fields.Read("run_id", report.run_id);
  fields.Read("world_size", report.world_size);
  fields.Read("num_layers", report.num_layers);
  fields.Read("num_logical_experts", report.num_experts);
  fields.Read("num_slots", report.num_slots);
  fields.Read("transport", report.transport);
  std::string split = wire::SplitName(SplitMode::kEqual);
  if (json.is_object() && json.contains("split")) fields.Read("split", split);
  fields.Read("steps_asked", report.steps_asked);
  fields.Read("began_at", report.began_at);
  fields.Read("even_step_seconds", report.even_step_seconds);
  fields.Read("bytes_verified", report.bytes_verified);
  fields.Read("boundary_seconds", report.boundary_seconds);
  fields.Read("session_waits_over_1ms", report.session_waits_over_1ms);
  fields.Read("error", report.error);
  const Json* switches = fields.Array("switches");
  const Json* steps = fields.Array("steps");
  if (!fields.status().ok()) return fields.status();
  if (format != kRunFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("format is \"", format, "\", expected \"", kRunFormat, "\""));
  }
  EPLB_ASSIGN_OR_RETURN(report.split, SplitFrom(split));
  for (size_t i = 0; i < switches->size(); ++i) {
    EPLB_ASSIGN_OR_RETURN(SwitchRecord change, SwitchFrom((*switches)[i], i));
    report.switches.push_back(std::move(change));
  }
  for (size_t i = 0; i < steps->size(); ++i) {
    EPLB_ASSIGN_OR_RETURN(const StepRecord step, StepFrom((*steps)[i], i));
    report.steps.push_back(step);
  }
  return report;
}

}  // namespace

std::vector<std::vector<SwitchRecord>> ByDecision(const std::vector<SwitchRecord>& switches) {
  const auto same = [](const SwitchRecord& one, const SwitchRecord& other) {
    if (one.decision != 0 || other.decision != 0) return one.decision == other.decision;
    return one.decided_first_step == other.decided_first_step &&
           one.decided_last_step == other.decided_last_step && one.reason == other.reason;
  };
  std::vector<std::vector<SwitchRecord>> decisions;
  for (const SwitchRecord& change : switches) {
    if (decisions.empty() || !same(decisions.back().back(), change)) decisions.emplace_back();
    decisions.back().push_back(change);
  }
  return decisions;
}

int64_t CountRebalances(const std::vector<SwitchRecord>& switches) {
  int64_t rebalances = 0;
  for (const std::vector<SwitchRecord>& decision : ByDecision(switches)) {
    rebalances += decision.front().policy == kRollbackPolicy ? 0 : 1;
  }
  return rebalances;
}

std::string RunReportToJson(const RunReport& report) {
  Json json = {{"format", kRunFormat},
               {"job", report.job},
               {"run_id", report.run_id},
               {"world_size", report.world_size},
               {"num_layers", report.num_layers},
               {"num_logical_experts", report.num_experts},
               {"num_slots", report.num_slots},
               {"transport", report.transport},
               {"split", wire::SplitName(report.split)},
               {"steps_asked", report.steps_asked},
               {"began_at", report.began_at},
               {"even_step_seconds", report.even_step_seconds},
               {"steps_run", report.steps.size()},
               {"bytes_verified", report.bytes_verified},
               {"boundary_seconds", report.boundary_seconds},
               {"session_waits_over_1ms", report.session_waits_over_1ms},
               {"error", report.error},
               {"summary", Summary(report)},
               {"switches", Json::array()},
               {"steps", Json::array()}};
  for (const SwitchRecord& change : report.switches) {
    json["switches"].push_back({{"step", change.step},
                                {"version", change.version},
                                {"decided_first_step", change.decided_first_step},
                                {"decided_last_step", change.decided_last_step},
                                {"decision", change.decision},
                                {"policy", change.policy},
                                {"asked_by", change.asked_by},
                                {"reason", change.reason},
                                {"bytes_moved", change.bytes_moved},
                                {"pause_seconds", change.pause_seconds},
                                {"bytes_verified", change.bytes_verified}});
  }
  for (const StepRecord& step : report.steps) {
    json["steps"].push_back(
        {{"step", step.step},
         {"version", step.version},
         {"balancedness", JsonOrNull(step.balancedness)},
         {"balancedness_static", JsonOrNull(step.balancedness_static)},
         {"balancedness_without_eplb", JsonOrNull(step.balancedness_without_eplb)},
         {"peak_tokens", JsonOrNull(step.peak_tokens)},
         {"peak_tokens_without_eplb", JsonOrNull(step.peak_tokens_without_eplb)},
         {"began", step.began},
         {"seconds", step.seconds},
         {"boundary_seconds", step.boundary_seconds},
         {"work_seconds", step.work_seconds}});
  }
  // Reasons come from the daemon: bytes that are not UTF-8 must not end the program.
  return EscapedJson(json.dump(1, ' ', false, Json::error_handler_t::replace)) + "\n";
}

absl::StatusOr<RunReport> ReadRunReport(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  // The strict reader names line and column.
  if (json.is_discarded()) return InFile(path, wire::ParseJson(text).status());
  absl::StatusOr<RunReport> report = ReportFrom(json);
  if (!report.ok()) return InFile(path, report.status());
  return report;
}

absl::Status WriteRunReport(const RunReport& report, const std::string& path) {
  return WriteFileAtomically(path, RunReportToJson(report));
}

namespace {

constexpr int32_t kMaxRunRanks = 1 << 20;

std::string HistoryPath(const std::string& directory, int32_t rank) {
  return absl::StrCat(directory, "/rank-", rank, ".jsonl");
}

// Ranks with a log, from 0 on; at least 1, for rank 0 must be there.
int32_t CountLogs(const std::string& directory) {
  int32_t count = 1;
  std::error_code error;
  while (count < kMaxRunRanks && std::filesystem::exists(HistoryPath(directory, count), error)) {
    ++count;
  }
  return count;
}

constexpr int64_t kMaxMicros = int64_t{1} << 53;  // the year 2255; a double holds it
constexpr int64_t kMaxBytes = int64_t{1} << 44;   // of a round; a sum of 2^18 fits

absl::StatusOr<int64_t> GetAtMost(const wire::JsonValue& object, std::string_view key,
                                  int64_t most) {
  EPLB_ASSIGN_OR_RETURN(const int64_t number, GetNatural(object, key));
  if (number <= most) return number;
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(key), " is ", number, ", expected at most ", most));
}

absl::Status ReadSpan(const wire::JsonValue& object, int64_t& unix_micros, int64_t& micros) {
  EPLB_ASSIGN_OR_RETURN(unix_micros, GetAtMost(object, "unix_micros", kMaxMicros));
  EPLB_ASSIGN_OR_RETURN(micros, GetAtMost(object, "micros", kMaxMicros));
  return absl::OkStatus();
}

absl::StatusOr<const std::vector<wire::JsonValue>*> ObjectsOf(const wire::JsonValue& object,
                                                              std::string_view key) {
  const wire::JsonValue* const list = object.Find(key);
  if (list != nullptr && list->is_array()) return &list->objects;
  return absl::InvalidArgumentError(absl::StrCat(std::string(key), " is missing or not an array"));
}

absl::StatusOr<BoundaryTimes> BoundaryFrom(const wire::JsonValue& object) {
  BoundaryTimes times;
  EPLB_ASSIGN_OR_RETURN(times.step, GetNatural(object, "step"));
  EPLB_ASSIGN_OR_RETURN(times.version, GetNatural(object, "version"));
  EPLB_ASSIGN_OR_RETURN(times.outcome, wire::GetString(object, "outcome"));
  EPLB_ASSIGN_OR_RETURN(times.transport, wire::GetString(object, "transport"));
  times.whole.name = "boundary";
  EPLB_RETURN_IF_ERROR(ReadSpan(object, times.whole.unix_micros, times.whole.micros));
  EPLB_ASSIGN_OR_RETURN(const auto* const spans, ObjectsOf(object, "spans"));
  for (const wire::JsonValue& one : *spans) {
    BoundarySpan& span = times.spans.emplace_back();
    EPLB_ASSIGN_OR_RETURN(span.name, wire::GetString(one, "name"));
    EPLB_RETURN_IF_ERROR(ReadSpan(one, span.unix_micros, span.micros));
  }
  EPLB_ASSIGN_OR_RETURN(const auto* const rounds, ObjectsOf(object, "rounds"));
  for (const wire::JsonValue& one : *rounds) {
    BoundaryRound& round = times.rounds.emplace_back();
    EPLB_ASSIGN_OR_RETURN(const int64_t number, GetNatural(one, "round"));
    round.round = static_cast<int32_t>(std::min<int64_t>(number, kMaxRunRanks));
    EPLB_RETURN_IF_ERROR(ReadSpan(one, round.unix_micros, round.micros));
    EPLB_ASSIGN_OR_RETURN(round.sent_bytes, GetAtMost(one, "sent_bytes", kMaxBytes));
    EPLB_ASSIGN_OR_RETURN(round.received_bytes, GetAtMost(one, "received_bytes", kMaxBytes));
    if (one.Find("checksum_micros") == nullptr) continue;
    EPLB_ASSIGN_OR_RETURN(round.checksum_micros, GetAtMost(one, "checksum_micros", kMaxMicros));
  }
  return times;
}

// Adds what the line says of times, if anything.
absl::Status AddTimes(const wire::JsonValue& object, RankTimeline& timeline) {
  EPLB_ASSIGN_OR_RETURN(const std::string event, wire::GetString(object, "event"));
  if (event == "boundary") {
    TimedBoundary& boundary = timeline.boundaries.emplace_back();
    EPLB_ASSIGN_OR_RETURN(boundary.run_id, wire::GetString(object, "run_id"));
    EPLB_ASSIGN_OR_RETURN(boundary.times, BoundaryFrom(object));
  } else if (event == "ready" && object.Find("unix_micros") != nullptr) {
    TimedPrepared& prepared = timeline.prepared.emplace_back();
    EPLB_ASSIGN_OR_RETURN(prepared.run_id, wire::GetString(object, "run_id"));
    EPLB_ASSIGN_OR_RETURN(prepared.version, GetNatural(object, "version"));
    EPLB_ASSIGN_OR_RETURN(prepared.unix_micros, GetAtMost(object, "unix_micros", kMaxMicros));
  }
  return absl::OkStatus();
}

absl::StatusOr<RankTimeline> ReadTimeline(const std::string& path, int32_t rank) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  RankTimeline timeline{.rank = RankId{rank}, .prepared = {}, .boundaries = {}};
  for (const TextLine& line : SplitLines(text)) {
    const absl::StatusOr<wire::JsonValue> object = wire::ParseJson(line.text);
    if (!object.ok() && !line.has_newline) break;
    if (!object.ok()) return InLine(path, line.number, object.status());
    if (const absl::Status added = AddTimes(*object, timeline); !added.ok()) {
      return InLine(path, line.number, added);
    }
  }
  return timeline;
}

absl::StatusOr<RankHistory> ReadHistory(const std::string& directory, int32_t rank) {
  const std::string path = HistoryPath(directory, rank);
  EPLB_ASSIGN_OR_RETURN(RankHistory history, ReadHistoryFile(path));
  if (history.rank.value != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is the log of rank ", history.rank.value));
  }
  return history;
}

absl::StatusOr<std::vector<RankHistory>> ReadHistories(const std::string& directory,
                                                       int32_t world_size) {
  std::vector<RankHistory> histories;
  histories.reserve(static_cast<size_t>(world_size));
  for (int32_t rank = 0; rank < world_size; ++rank) {
    EPLB_ASSIGN_OR_RETURN(RankHistory history, ReadHistory(directory, rank));
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
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": line ", expected + 1, " covers steps ", window.first_step, "..",
                       window.last_step, ", expected only step ", expected));
    }
    loads.push_back(std::move(window.load));
  }
  return loads;
}

}  // namespace

absl::StatusOr<RunLogs> ReadRunLogs(const std::string& directory) {
  RunLogs logs;
  EPLB_ASSIGN_OR_RETURN(logs.histories, ReadHistories(directory, CountLogs(directory)));
  EPLB_ASSIGN_OR_RETURN(logs.placements, ReadPlacementsLog(directory + "/placements.jsonl"));
  return logs;
}

absl::StatusOr<std::vector<RankTimeline>> ReadTimelines(const std::string& directory) {
  std::vector<RankTimeline> timelines;
  const int32_t world_size = CountLogs(directory);
  for (int32_t rank = 0; rank < world_size; ++rank) {
    EPLB_ASSIGN_OR_RETURN(RankTimeline timeline, ReadTimeline(HistoryPath(directory, rank), rank));
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
    return absl::NotFoundError(absl::StrCat(directory, ": no such directory"));
  }
  RunDirectory run;
  EPLB_ASSIGN_OR_RETURN(run.report, ReadRunReport(directory + "/run.json"));
  EPLB_ASSIGN_OR_RETURN(run.histories, ReadHistories(directory, run.report.world_size));
  EPLB_ASSIGN_OR_RETURN(run.placements, ReadPlacementsLog(directory + "/placements.jsonl"));
  const std::string events = directory + "/events.json";
  if (std::filesystem::exists(events, error)) {
    EPLB_ASSIGN_OR_RETURN(run.events, ReadEventsFile(events));
  }
  EPLB_ASSIGN_OR_RETURN(run.step_loads, ReadStepLoads(directory + "/loads.jsonl"));
  return run;
}

}  // namespace eplb
