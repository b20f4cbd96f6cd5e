// Reads and writes run.json, by one list of the fields of each object.
#include "client/run_log/run_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/foreign_text.h"
#include "base/json_or_null.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "placement/figure_mean.h"

#include <nlohmann/json.hpp>

namespace eplb {
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

// Writes the keys of one object.
class JsonWriter {
 public:
  template <class Value>
  void Field(const char* key, const Value& value) {
    json_[key] = value;
  }
  // Null stands for a figure without a sample.
  void Field(const char* key, const std::optional<double>& value) {
    json_[key] = JsonOrNull(value);
  }
  template <class Value>
  void NewerField(const char* key, const Value& value) {
    Field(key, value);
  }

  Json& json() { return json_; }

 private:
  Json json_ = Json::object();
};

// Reads the keys of one object; keeps the first key that is missing or of another type as the
// error.
class JsonReader {
 public:
  JsonReader(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
    if (!object_.is_object()) status_ = InvalidInput(place_, " is not an object");
  }

  void Field(const char* key, std::string& out) {
    if (const Json* value = Find(key, "a string", &Json::is_string))
      out = value->get<std::string>();
  }
  void Field(const char* key, double& out) {
    if (const Json* value = Find(key, "a number", &Json::is_number)) out = value->get<double>();
  }
  template <class Integer>
  void Field(const char* key, Integer& out) {
    if (const Json* value = Find(key, "an integer", &Json::is_number_integer))
      out = value->get<Integer>();
  }
  void Field(const char* key, std::optional<double>& out) {
    if (const auto found = object_.find(key); found != object_.end() && found->is_null()) return;
    if (const Json* value = Find(key, "a number", &Json::is_number)) out = value->get<double>();
  }
  // Leaves `out` as it is if an older trainer did not write the key.
  template <class Value>
  void NewerField(const char* key, Value& out) {
    if (object_.is_object() && object_.contains(key)) Field(key, out);
  }
  const Json* Array(const char* key) { return Find(key, "an array", &Json::is_array); }

  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* key, const char* kind, bool (Json::*is_kind)() const noexcept) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(key);
    if (found != object_.end() && ((*found).*is_kind)()) return &*found;
    status_ = InvalidInput(place_, ": ", key, " is missing or not ", kind);
    return nullptr;
  }

  const Json& object_;
  std::string place_;
  absl::Status status_;
};

// The fields of the objects, in the order of the file. Io: JsonWriter, or JsonReader.
template <class Io, class Switch>
void SwitchFields(Io& io, Switch& change) {
  io.Field("step", change.step);
  io.Field("version", change.version);
  io.Field("decided_first_step", change.decided_first_step);
  io.Field("decided_last_step", change.decided_last_step);
  io.Field("decision", change.decision);
  io.Field("policy", change.policy);
  io.Field("asked_by", change.asked_by);
  io.Field("reason", change.reason);
  io.Field("bytes_moved", change.bytes_moved);
  io.Field("pause_seconds", change.pause_seconds);
  io.Field("bytes_verified", change.bytes_verified);
}

template <class Io, class Step>
void StepFields(Io& io, Step& step) {
  io.Field("step", step.step);
  io.Field("version", step.version);
  io.Field("balancedness", step.balancedness);
  io.Field("balancedness_static", step.balancedness_static);
  io.NewerField("balancedness_without_eplb", step.balancedness_without_eplb);
  io.NewerField("peak_tokens", step.peak_tokens);
  io.NewerField("peak_tokens_without_eplb", step.peak_tokens_without_eplb);
  io.Field("began", step.began);
  io.Field("seconds", step.seconds);
  io.Field("boundary_seconds", step.boundary_seconds);
  io.Field("work_seconds", step.work_seconds);
}

// Values of a report that JSON has in another form.
struct ReportTexts {
  std::string format = kRunFormat;
  std::string split = wire::SplitName(SplitMode::kEqual);
  size_t steps_run = 0;
};

template <class Io, class Report>
void ReportFields(Io& io, Report& report, ReportTexts& texts) {
  io.Field("format", texts.format);
  io.Field("job", report.job);
  io.Field("run_id", report.run_id);
  io.Field("world_size", report.world_size);
  io.Field("num_layers", report.num_layers);
  io.Field("num_logical_experts", report.num_experts);
  io.Field("num_slots", report.num_slots);
  io.Field("transport", report.transport);
  io.NewerField("split", texts.split);
  io.Field("steps_asked", report.steps_asked);
  io.Field("began_at", report.began_at);
  io.Field("even_step_seconds", report.even_step_seconds);
  io.NewerField("steps_run", texts.steps_run);
  io.Field("bytes_verified", report.bytes_verified);
  io.Field("boundary_seconds", report.boundary_seconds);
  io.Field("session_waits_over_1ms", report.session_waits_over_1ms);
  io.Field("error", report.error);
}

absl::StatusOr<SplitMode> SplitFrom(const std::string& name) {
  for (const SplitMode split : {SplitMode::kEqual, SplitMode::kBatch}) {
    if (name == wire::SplitName(split)) return split;
  }
  return InvalidInput("split is \"", name, "\", expected \"equal\" or \"batch\"");
}

absl::StatusOr<RunReport> ReportFrom(const Json& json) {
  RunReport report;
  ReportTexts texts;
  JsonReader reader(json, "report");
  ReportFields(reader, report, texts);
  const Json* switches = reader.Array("switches");
  const Json* steps = reader.Array("steps");
  EPLB_RETURN_IF_ERROR(reader.status());
  if (texts.format != kRunFormat) {
    return InvalidInput("format is \"", texts.format, "\", expected \"", kRunFormat, "\"");
  }
  EPLB_ASSIGN_OR_RETURN(report.split, SplitFrom(texts.split));
  for (size_t i = 0; i < switches->size(); ++i) {
    JsonReader one((*switches)[i], absl::StrCat("switches[", i, "]"));
    SwitchFields(one, report.switches.emplace_back());
    EPLB_RETURN_IF_ERROR(one.status());
  }
  for (size_t i = 0; i < steps->size(); ++i) {
    JsonReader one((*steps)[i], absl::StrCat("steps[", i, "]"));
    StepFields(one, report.steps.emplace_back());
    EPLB_RETURN_IF_ERROR(one.status());
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

nlohmann::ordered_json SwitchesToJson(const std::vector<SwitchRecord>& switches) {
  Json list = Json::array();
  for (const SwitchRecord& change : switches) {
    JsonWriter one;
    SwitchFields(one, change);
    list.push_back(std::move(one.json()));
  }
  return list;
}

std::string RunReportToJson(const RunReport& report) {
  ReportTexts texts{.split = wire::SplitName(report.split), .steps_run = report.steps.size()};
  JsonWriter writer;
  ReportFields(writer, report, texts);
  Json& json = writer.json();
  json["summary"] = Summary(report);
  json["switches"] = SwitchesToJson(report.switches);
  json["steps"] = Json::array();
  for (const StepRecord& step : report.steps) {
    JsonWriter one;
    StepFields(one, step);
    json["steps"].push_back(std::move(one.json()));
  }
  // Reasons are the daemon's, and bytes that are not UTF-8 must not end the program.
  return EscapedJson(json.dump(1, ' ', false, Json::error_handler_t::replace)) + "\n";
}

absl::StatusOr<RunReport> ReadRunReport(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  // The strict reader reports line and column.
  if (json.is_discarded()) return InFile(path, wire::ParseJson(text).status());
  return InFile(path, ReportFrom(json));
}

absl::Status WriteRunReport(const RunReport& report, const std::string& path) {
  return WriteFileAtomically(path, RunReportToJson(report));
}

}  // namespace eplb
