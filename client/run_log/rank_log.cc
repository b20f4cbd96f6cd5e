// Reads rank-R.jsonl line by line. A last line without an end was cut off by a dying process.
#include "client/run_log/rank_log.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/files.h"
#include "base/json_value.h"
#include "base/status_macros.h"

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
  return InvalidInput("event is ", wire::JsonQuote(event),
                      ", expected start, ready, vote, commit, drop, steps or stop");
}

absl::StatusOr<int64_t> GetNatural(const wire::JsonValue& object, std::string_view key) {
  EPLB_ASSIGN_OR_RETURN(const int64_t number, wire::GetInteger(object, key));
  if (number >= 0) return number;
  return InvalidInput(std::string(key), " is ", number, ", expected >= 0");
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
    return InvalidInput("rank is ", rank, ", expected 0..2^31-1");
  }
  record.rank = RankId{static_cast<int32_t>(rank)};
  EPLB_ASSIGN_OR_RETURN(record.run_id, wire::GetString(object, "run_id"));
  if (record.kind == Kind::kStop) {
    EPLB_ASSIGN_OR_RETURN(record.step, wire::GetInteger(object, "step"));
    if (record.step < -1) {  // -1: it stopped before step 0
      return InvalidInput("step is ", record.step, ", expected >= -1");
    }
  } else {
    EPLB_ASSIGN_OR_RETURN(record.step, GetNatural(object, "step"));
  }
  if (record.kind == Kind::kStep) {
    EPLB_ASSIGN_OR_RETURN(record.last_step, GetNatural(object, "last_step"));
    if (record.last_step < record.step) {
      return InvalidInput("last_step is ", record.last_step, ", below step ", record.step);
    }
  }
  if (record.kind == Kind::kVote) {
    const wire::JsonValue* passed = object.Find("ok");
    if (passed == nullptr || passed->kind != wire::JsonValue::Kind::kBool) {
      return InvalidInput("ok is missing or no boolean");
    }
    record.passed = passed->boolean;
  }
  if (record.kind == Kind::kStop) return record;
  EPLB_ASSIGN_OR_RETURN(record.version, GetNatural(object, "version"));
  EPLB_ASSIGN_OR_RETURN(const std::string hex, wire::GetString(object, "digest"));
  EPLB_ASSIGN_OR_RETURN(record.digest, Digest::FromHex(hex));
  return record;
}

constexpr int64_t kMaxMicros = int64_t{1} << 53;  // the year 2255; a double holds it
constexpr int64_t kMaxBytes = int64_t{1} << 44;   // bytes of a round; a sum of 2^18 fits
constexpr int64_t kMaxRounds = int64_t{1} << 20;

absl::StatusOr<int64_t> GetAtMost(const wire::JsonValue& object, std::string_view key,
                                  int64_t most) {
  EPLB_ASSIGN_OR_RETURN(const int64_t number, GetNatural(object, key));
  if (number <= most) return number;
  return InvalidInput(std::string(key), " is ", number, ", expected at most ", most);
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
  return InvalidInput(std::string(key), " is missing or not an array");
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
    round.round = static_cast<int32_t>(std::min<int64_t>(number, kMaxRounds));
    EPLB_RETURN_IF_ERROR(ReadSpan(one, round.unix_micros, round.micros));
    EPLB_ASSIGN_OR_RETURN(round.sent_bytes, GetAtMost(one, "sent_bytes", kMaxBytes));
    EPLB_ASSIGN_OR_RETURN(round.received_bytes, GetAtMost(one, "received_bytes", kMaxBytes));
    if (one.Find("checksum_micros") == nullptr) continue;
    EPLB_ASSIGN_OR_RETURN(round.checksum_micros, GetAtMost(one, "checksum_micros", kMaxMicros));
  }
  return times;
}

// Adds the times of a line, if it has any.
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

// Calls `take`, (JsonValue) -> Status, with each line. errors: those of `take`, with path and line.
template <class Take>
absl::Status ReadLines(const std::string& path, const Take& take) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  for (const TextLine& line : SplitLines(text)) {
    const absl::StatusOr<wire::JsonValue> object = wire::ParseJson(line.text);
    if (!object.ok() && !line.has_newline) break;
    const absl::Status taken = object.ok() ? take(*object) : object.status();
    if (!taken.ok()) return InLine(path, line.number, taken);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RankHistory> ReadHistoryFile(const std::string& path) {
  RankHistory history;
  EPLB_RETURN_IF_ERROR(ReadLines(path, [&](const wire::JsonValue& object) -> absl::Status {
    if (IsBoundary(object)) return absl::OkStatus();
    EPLB_ASSIGN_OR_RETURN(HistoryRecord record, RecordFrom(object));
    if (!history.records.empty() && record.rank != history.rank) {
      return InvalidInput("rank is ", record.rank.value, ", the records before are of rank ",
                          history.rank.value);
    }
    history.rank = record.rank;
    history.records.push_back(std::move(record));
    return absl::OkStatus();
  }));
  if (history.records.empty()) return InvalidInput(path + ": has no record");
  return history;
}

absl::StatusOr<RankTimeline> ReadTimelineFile(const std::string& path, RankId rank) {
  RankTimeline timeline{.rank = rank};
  EPLB_RETURN_IF_ERROR(
      ReadLines(path, [&](const wire::JsonValue& object) { return AddTimes(object, timeline); }));
  return timeline;
}

}  // namespace eplb
