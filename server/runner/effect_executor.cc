#include "server/runner/effect_executor.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

#include "base/monotonic_clock.h"
#include "server/process/log.h"

namespace eplb {

EffectExecutor::EffectExecutor(Sinks sinks)
    : sinks_(std::move(sinks)), log_rate_(kLogsPerSecond, MonotonicNow()) {}

std::optional<core::StoreFailed> EffectExecutor::Execute(const core::Decision& decision) {
  for (const core::Effect& effect : decision.effects) {
    std::optional<core::StoreFailed> failed;
    if (const auto* send = std::get_if<core::Send>(&effect)) {
      sinks_.sessions->Send(send->session, send->message);
    } else if (const auto* close = std::get_if<core::Close>(&effect)) {
      Close(*close);
    } else if (const auto* store = std::get_if<core::Store>(&effect)) {
      failed = Write(*store);
    } else if (const auto* term = std::get_if<core::StoreTerm>(&effect)) {
      failed = Write(*term);
    } else if (const auto* solve = std::get_if<core::Solve>(&effect)) {
      sinks_.solve(*solve);
    } else if (const auto* cancel = std::get_if<core::CancelSolve>(&effect)) {
      sinks_.cancel_solve(*cancel);
    } else if (const auto* plan = std::get_if<core::StorePlan>(&effect)) {
      Write(*plan);
    } else if (const auto* loads = std::get_if<core::StoreTypicalLoads>(&effect)) {
      Write(*loads);
    } else if (const auto* forget = std::get_if<core::Forget>(&effect)) {
      failed = Forget(*forget);
    } else if (const auto* window = std::get_if<core::KeepWindow>(&effect)) {
      sinks_.history->Add(window->job, window->window, absl::Now());
    } else if (const auto* reply = std::get_if<core::Reply>(&effect)) {
      sinks_.reply(*reply);
    } else {
      Record(std::get<core::Record>(effect));
    }
    if (failed) return failed;
  }
  return std::nullopt;
}

void EffectExecutor::Close(const core::Close& effect) {
  sinks_.sessions->Close(effect.session, effect.status);
  if (effect.refused.empty()) return;
  if (!log_rate_.Take(MonotonicNow())) {
    ++unlogged_;
    return;
  }
  Log(LogLevel::kWarn, "refused",
      {{"kind", "rank"},
       {"peer", effect.refused},
       {"unlogged_before", std::exchange(unlogged_, 0)},
       {"reason", std::string(effect.status.message())}});
}

void EffectExecutor::ProbeStore(int64_t term) {
  (void)Noted([term](Store& store) { return store.WriteTerm(term); });
}

std::optional<core::StoreFailed> EffectExecutor::Write(const core::Store& effect) {
  const absl::Status status = Noted([&effect](Store& store) { return store.WriteJob(effect.job); });
  if (status.ok()) return std::nullopt;
  Log(LogLevel::kError, "store_failed",
      {{"job", effect.job.job}, {"reason", std::string(status.message())}});
  return core::StoreFailed{.job = effect.job.job, .status = status};
}

std::optional<core::StoreFailed> EffectExecutor::Write(const core::StoreTerm& effect) {
  const absl::Status status =
      Noted([&effect](Store& store) { return store.WriteTerm(effect.term); });
  if (status.ok()) return std::nullopt;
  Log(LogLevel::kError, "store_failed",
      {{"term", effect.term}, {"reason", std::string(status.message())}});
  return core::StoreFailed{.job = "", .status = status};
}

void EffectExecutor::Record(const core::Record& record) {
  const v1::JobEvent& event = record.event;
  Log(LogLevel::kInfo, event.name(),
      {{"job", event.job()},
       {"term", record.term},
       {"version", static_cast<int64_t>(event.version())},
       {"reason", event.reason()},
       {"actor", event.actor()}});
  const absl::Status status =
      Noted([&event](Store& store) { return store.AppendEvent(absl::Now(), event); });
  if (status.ok()) return;
  Log(LogLevel::kError, "event_not_stored",
      {{"job", event.job()}, {"name", event.name()}, {"reason", std::string(status.message())}});
}

void EffectExecutor::Write(const core::StorePlan& effect) {
  const absl::Status status =
      Noted([&effect](Store& store) { return store.WritePlan(effect.job, effect.plan); });
  if (status.ok()) return;
  Log(LogLevel::kError, "plan_not_stored",
      {{"job", effect.job},
       {"plan", static_cast<int64_t>(effect.plan.plan())},
       {"reason", std::string(status.message())}});
}

void EffectExecutor::Write(const core::StoreTypicalLoads& effect) {
  const absl::Status status =
      Noted([&effect](Store& store) { return store.WriteTypicalLoads(effect.job, effect.loads); });
  if (status.ok()) return;
  Log(LogLevel::kError, "typical_loads_not_stored",
      {{"job", effect.job}, {"reason", std::string(status.message())}});
}

std::optional<core::StoreFailed> EffectExecutor::Forget(const core::Forget& effect) {
  const absl::Status status =
      Noted([&effect](Store& store) { return store.ForgetJob(effect.job); });
  if (status.ok() || !effect.required) sinks_.history->Forget(effect.job);
  if (status.ok()) return std::nullopt;
  Log(LogLevel::kError, "job_not_forgotten",
      {{"job", effect.job}, {"reason", std::string(status.message())}});
  if (!effect.required) return std::nullopt;
  return core::StoreFailed{.job = effect.job, .status = status};
}

absl::Status EffectExecutor::Noted(const std::function<absl::Status(Store&)>& write) {
  const absl::Time began = MonotonicNow();
  absl::Status status = write(*sinks_.store);
  write_seconds_.Observe(absl::ToDoubleSeconds(MonotonicNow() - began));
  if (!status.ok()) ++write_errors_;
  NoteStore(status);
  return status;
}

void EffectExecutor::NoteStore(const absl::Status& status) {
  const bool worked = store_works_.exchange(status.ok());
  if (worked && status.ok()) return;
  {
    const std::lock_guard lock(status_mutex_);
    if (store_status_ == status) return;
    store_status_ = status;  // also another reason than before: a full disk, then a lost file
  }
  if (!status.ok()) {
    Log(LogLevel::kError, "store_takes_no_writes", {{"reason", std::string(status.message())}});
  } else {
    Log(LogLevel::kInfo, "store_takes_writes_again", {});
  }
}

bool EffectExecutor::SaveWindows() {
  if (!sinks_.store->KeepsWindows() || !store_works()) return false;
  const std::vector<StoredWindow> windows = sinks_.history->Unsaved(kWindowsAtOnce);
  if (windows.empty()) return false;
  const absl::Status status =
      Noted([&windows](Store& store) { return store.WriteWindows(windows); });
  if (status.ok()) sinks_.history->NoteSaved(static_cast<int64_t>(windows.back().figures.window()));
  return status.ok();
}

void EffectExecutor::CheckStore() {
  const absl::Status status = sinks_.store->CheckFile();
  if (status.ok()) return;  // only a write shows whether writes work
  if (store_works()) ++write_errors_;
  NoteStore(status);
}

absl::Status EffectExecutor::store_status() const {
  const std::lock_guard lock(status_mutex_);
  return store_status_;
}

}  // namespace eplb
