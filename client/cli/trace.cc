#include "client/cli/trace.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "proto/wire/message_json.h"

namespace eplb::cli {

namespace {

using TraceJson = nlohmann::ordered_json;

// A viewer may take a thread's number for the thread itself, whatever its process.
constexpr int64_t kTracksPerProcess = 16;
constexpr int64_t kFirstDaemonTrack = 3'000'000'000;

int64_t ThreadOf(Track track) {
  if (track.process == kDaemonProcess) return kFirstDaemonTrack + track.index;
  return track.process * kTracksPerProcess + track.index;
}

TraceJson NameEvent(const char* what, int64_t process, int64_t thread, TraceJson args) {
  return {
      {"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", std::move(args)}};
}

TraceJson EventJson(const TraceSpan& span) {
  TraceJson json = {{"ph", span.micros ? "X" : "i"}};
  if (!span.micros) json["s"] = "t";
  json.update({{"cat", "eplb"},
               {"name", span.name},
               {"pid", span.track.process},
               {"tid", ThreadOf(span.track)},
               {"ts", span.unix_micros}});
  if (span.micros) json["dur"] = *span.micros;
  json["args"] = span.args;
  return json;
}

}  // namespace

void TraceFile::NameProcess(int64_t process, const std::string& name) {
  const int64_t thread = ThreadOf({.process = process});
  names_.push_back(NameEvent("process_name", process, thread, {{"name", name}}));
  names_.push_back(NameEvent("process_sort_index", process, thread, {{"sort_index", process}}));
}

void TraceFile::NameTrack(Track track, const std::string& name) {
  const int64_t thread = ThreadOf(track);
  names_.push_back(NameEvent("thread_name", track.process, thread, {{"name", name}}));
  names_.push_back(
      NameEvent("thread_sort_index", track.process, thread, {{"sort_index", track.index}}));
}

void TraceFile::Add(TraceSpan span) { events_.push_back(std::move(span)); }

std::string TraceFile::ToJson(const TraceJson& metadata) const {
  std::vector<const TraceSpan*> ordered;
  for (const TraceSpan& event : events_) ordered.push_back(&event);
  std::ranges::stable_sort(ordered, [](const TraceSpan* a, const TraceSpan* b) {
    return std::pair(a->unix_micros, -a->micros.value_or(0)) <
           std::pair(b->unix_micros, -b->micros.value_or(0));
  });
  std::string text = absl::StrCat(R"({"displayTimeUnit":"ms","baseTimeNanoseconds":0,"metadata":)",
                                  wire::DumpJson(metadata), R"(,"traceEvents":[)");
  const char* separator = "\n";
  const auto add = [&text, &separator](const TraceJson& event) {
    absl::StrAppend(&text, separator, wire::DumpJson(event));
    separator = ",\n";
  };
  for (const TraceJson& name : names_) add(name);
  for (const TraceSpan* event : ordered) add(EventJson(*event));
  return text + "\n]}\n";
}

}  // namespace eplb::cli
