// Reads events.json of a run's directory.
#include "client/run_log/events_file.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/files.h"
#include "base/json_value.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

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
    return absl::InvalidArgumentError("events is missing or not an array");
  }
  const int64_t entries = events->numbers.children.front().front();
  if (entries != static_cast<int64_t>(events->objects.size())) {
    return absl::InvalidArgumentError("events is no array of objects");
  }
  for (size_t i = 0; i < events->objects.size(); ++i) {
    absl::StatusOr<LoggedEvent> event = EventFrom(events->objects[i]);
    if (!event.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("events[", i, "]: ", event.status().message()));
    }
    result.events.push_back(*std::move(event));
  }
  std::sort(result.events.begin(), result.events.end(),
            [](const LoggedEvent& one, const LoggedEvent& other) {
              return one.sequence < other.sequence;
            });
  return result;
}

}  // namespace

absl::StatusOr<LoggedEvents> ReadEventsFile(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  const absl::StatusOr<wire::JsonValue> document = wire::ParseJson(text);
  if (!document.ok()) return InFile(path, document.status());
  absl::StatusOr<LoggedEvents> events = EventsFrom(*document);
  if (!events.ok()) return InFile(path, events.status());
  return events;
}

}  // namespace eplb
