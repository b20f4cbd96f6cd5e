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

void TraceFile::AddSpan(TraceSpan span) {
  events_.push_back({.unix_micros = span.unix_micros,
                     .micros = span.micros,
                     .json = {{"ph", "X"},
                              {"cat", "eplb"},
                              {"name", span.name},
                              {"pid", span.track.process},
                              {"tid", ThreadOf(span.track)},
                              {"ts", span.unix_micros},
                              {"dur", span.micros},
                              {"args", std::move(span.args)}}});
}

void TraceFile::AddInstant(TraceSpan moment) {
  events_.push_back({.unix_micros = moment.unix_micros,
                     .json = {{"ph", "i"},
                              {"s", "t"},
                              {"cat", "eplb"},
                              {"name", moment.name},
                              {"pid", moment.track.process},
                              {"tid", ThreadOf(moment.track)},
                              {"ts", moment.unix_micros},
                              {"args", std::move(moment.args)}}});
}

std::string TraceFile::ToJson(const TraceJson& metadata) const {
  std::vector<const Event*> ordered;
  for (const Event& event : events_) ordered.push_back(&event);
  std::ranges::stable_sort(ordered, [](const Event* a, const Event* b) {
    return a->unix_micros != b->unix_micros ? a->unix_micros < b->unix_micros
                                            : a->micros > b->micros;
  });
  std::string text = absl::StrCat(R"({"displayTimeUnit":"ms","baseTimeNanoseconds":0,"metadata":)",
                                  wire::DumpJson(metadata), R"(,"traceEvents":[)");
  const char* separator = "\n";
  const auto add = [&text, &separator](const TraceJson& event) {
    absl::StrAppend(&text, separator, wire::DumpJson(event));
    separator = ",\n";
  };
  for (const TraceJson& name : names_) add(name);
  for (const Event* event : ordered) add(event->json);
  return text + "\n]}\n";
}

}  // namespace eplb::cli
