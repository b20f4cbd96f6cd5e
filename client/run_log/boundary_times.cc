#include "client/run_log/boundary_times.h"

#include <utility>

#include "absl/time/clock.h"

#include "base/foreign_text.h"

#include <nlohmann/json.hpp>

namespace eplb {

namespace {

using TimesJson = nlohmann::ordered_json;

constexpr size_t kUsualSpans = 8;

}  // namespace

std::string BoundaryTimesToJson(const BoundaryTimes& times, int32_t rank, std::string_view run_id) {
  TimesJson json = {{"event", "boundary"},
                    {"rank", rank},
                    {"run_id", run_id},
                    {"step", times.step},
                    {"version", times.version},
                    {"outcome", times.outcome},
                    {"transport", times.transport},
                    {"unix_micros", times.whole.unix_micros},
                    {"micros", times.whole.micros},
                    {"spans", TimesJson::array()},
                    {"rounds", TimesJson::array()}};
  for (const BoundarySpan& span : times.spans) {
    json["spans"].push_back(
        {{"name", span.name}, {"unix_micros", span.unix_micros}, {"micros", span.micros}});
  }
  for (const BoundaryRound& round : times.rounds) {
    TimesJson one = {{"round", round.round},
                     {"unix_micros", round.unix_micros},
                     {"micros", round.micros},
                     {"sent_bytes", round.sent_bytes},
                     {"received_bytes", round.received_bytes}};
    if (round.checksum_micros >= 0) one["checksum_micros"] = round.checksum_micros;
    json["rounds"].push_back(std::move(one));
  }
  return EscapedJson(json.dump(-1, ' ', false, TimesJson::error_handler_t::replace));
}

BoundaryTimer::BoundaryTimer(int64_t step, int64_t version, absl::Time began)
    : began_(began), to_wall_(absl::Now() - MonotonicNow()) {
  times_.step = step;
  times_.version = version;
  times_.outcome = "not agreed";
  times_.spans.reserve(kUsualSpans);
}

BoundarySpan BoundaryTimer::SpanOf(std::string_view name, absl::Time began,
                                   absl::Time ended) const {
  const int64_t begin = absl::ToUnixMicros(began + to_wall_);
  return {.name = std::string(name),
          .unix_micros = begin,
          .micros = absl::ToUnixMicros(ended + to_wall_) - begin};
}

void BoundaryTimer::AddSpan(std::string_view name, absl::Time began, absl::Time ended) {
  times_.spans.push_back(SpanOf(name, began, ended));
}

void BoundaryTimer::AddRound(const Round& round) {
  const BoundarySpan span = SpanOf("", round.began, round.ended);
  times_.rounds.push_back({.round = round.round,
                           .unix_micros = span.unix_micros,
                           .micros = span.micros,
                           .sent_bytes = round.sent_bytes,
                           .received_bytes = round.received_bytes,
                           .checksum_micros = round.checksum_micros});
}

const BoundaryTimes& BoundaryTimer::Finish(absl::Time ended) {
  times_.whole = SpanOf("boundary", began_, ended);
  return times_;
}

}  // namespace eplb
