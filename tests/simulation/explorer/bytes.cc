#include "tests/simulation/explorer/bytes.h"

#include <variant>

#include "absl/strings/str_cat.h"

namespace eplb::explorer {
namespace {

void Add(const wire::Hello& hello, Bytes& bytes) {
  bytes.Add(hello.running_version);
  bytes.Add(hello.running_digest);
  bytes.Add(hello.prepared_version);
  bytes.Add(hello.highest_term);
  bytes.Add(hello.highest_version);
  bytes.Add(hello.step);
  bytes.Add(hello.session_number);
  bytes.Add(hello.run_number);
  AddMemory(hello.memory, bytes);
}
void Add(const wire::LoadReport& report, Bytes& bytes) { bytes.Add(report.last_step); }
void Add(const wire::Prepared& ready, Bytes& bytes) {
  bytes.Add(ready.version);
  bytes.Add(ready.digest);
  bytes.Add(ready.plan_hash);
}
void Add(const wire::Nack& nack, Bytes& bytes) {
  bytes.Add(nack.version);
  bytes.Add(static_cast<int64_t>(nack.code));
}
void Add(const wire::Applied& applied, Bytes& bytes) {
  bytes.Add(applied.version);
  bytes.Add(applied.digest);
  bytes.Add(applied.step);
  bytes.Add(applied.received_bytes);
}
void Add(const wire::Failed& failed, Bytes& bytes) {
  bytes.Add(failed.version);
  bytes.Add(static_cast<int64_t>(failed.code));
  bytes.Add(failed.step);
}
void Add(const wire::PlacementBody& body, Bytes& bytes) {
  bytes.Add(body.version);
  bytes.Add(body.digest);
}
void Add(const wire::Goodbye& goodbye, Bytes& bytes) { bytes.Add(int64_t{goodbye.failed}); }
void Add(const wire::Welcome& welcome, Bytes& bytes) { bytes.Add(welcome.term); }
void Add(const wire::Propose& propose, Bytes& bytes) { AddPropose(propose, bytes); }
void Add(const wire::Cancel& cancel, Bytes& bytes) { bytes.Add(cancel.version); }
void Add(const wire::SetReportInterval& pace, Bytes& bytes) {
  bytes.Add(int64_t{pace.report_every});
}
void Add(const wire::NeedPlacement& need, Bytes& bytes) { bytes.Add(need.digest); }
void Add(const wire::Drain& drain, Bytes& bytes) { bytes.Add(int64_t{drain.grace_ms}); }
void Add(const wire::Keep& keep, Bytes& bytes) {
  bytes.Add(keep.run_number);
  AddMemory(keep.memory, bytes);
}
void Add(const wire::Moved& moved, Bytes& bytes) { bytes.Add(moved.term); }

std::string Name(const wire::Hello& hello) {
  return absl::StrCat("Hello running v", hello.running_version, " ready v", hello.prepared_version,
                      " seen v", hello.highest_version, " term ", hello.highest_term,
                      hello.run_number > 0 ? absl::StrCat(" run ", hello.run_number) : "");
}
std::string Name(const wire::LoadReport&) { return "LoadReport"; }
std::string Name(const wire::Prepared& ready) { return absl::StrCat("Ready v", ready.version); }
std::string Name(const wire::Nack& nack) {
  return absl::StrCat("Nack v", nack.version, " code ", static_cast<int>(nack.code));
}
std::string Name(const wire::Applied& applied) {
  return absl::StrCat("Applied v", applied.version);
}
std::string Name(const wire::Failed& failed) {
  return absl::StrCat("Failed v", failed.version, " code ", static_cast<int>(failed.code));
}
std::string Name(const wire::PlacementBody& body) {
  return absl::StrCat("PlacementBody v", body.version);
}
std::string Name(const wire::Goodbye&) { return "Goodbye"; }
std::string Name(const wire::Welcome& welcome) {
  return absl::StrCat("Welcome term ", welcome.term);
}
std::string Name(const wire::Propose& propose) {
  return absl::StrCat("Propose v", propose.version, " on v", propose.base_version);
}
std::string Name(const wire::Cancel& cancel) { return absl::StrCat("Cancel v", cancel.version); }
std::string Name(const wire::SetReportInterval&) { return "Pace"; }
std::string Name(const wire::NeedPlacement&) { return "NeedPlacement"; }
std::string Name(const wire::Drain&) { return "Drain"; }
std::string Name(const wire::Keep& keep) { return absl::StrCat("Keep run ", keep.run_number); }
std::string Name(const wire::Moved& moved) { return absl::StrCat("Moved term ", moved.term); }

}  // namespace

// Leaves out what no decision of this small world reads: pauses, settings, figures.
void AddMemory(const wire::CarriedMemory& memory, Bytes& bytes) {
  bytes.Add(int64_t{memory.value.has_value()});
  if (!memory.value) return;
  bytes.Add(memory.value->term);
  bytes.Add(memory.value->serial);
  bytes.Add(memory.value->run_number);
  bytes.Add(memory.value->run_id);
  bytes.Add(int64_t{memory.value->quarantine.empty()});
  for (const wire::EndedRun& gone : memory.value->gone) bytes.Add(gone.run_id);
}

void AddPropose(const wire::Propose& propose, Bytes& bytes) {
  bytes.Add(propose.term);
  bytes.Add(propose.version);
  bytes.Add(propose.base_version);
  bytes.Add(propose.base_digest);
  bytes.Add(propose.digest);
  for (const LayerPlacement& layer : propose.layers) bytes.Add(int64_t{layer.layer.value});
  bytes.Add(int64_t{propose.chunk});
  bytes.Add(int64_t{propose.num_chunks});
}

void AddMessage(const wire::UpMessage& message, Bytes& bytes) {
  bytes.Add(static_cast<int64_t>(message.index()));
  std::visit([&bytes](const auto& one) { Add(one, bytes); }, message);
}

void AddMessage(const wire::DownMessage& message, Bytes& bytes) {
  bytes.Add(static_cast<int64_t>(message.index()));
  std::visit([&bytes](const auto& one) { Add(one, bytes); }, message);
}

std::string NameOf(const wire::UpMessage& message) {
  return std::visit([](const auto& one) { return Name(one); }, message);
}

std::string NameOf(const wire::DownMessage& message) {
  return std::visit([](const auto& one) { return Name(one); }, message);
}

void DropSentences(wire::UpMessage& message) {
  if (auto* nack = std::get_if<wire::Nack>(&message)) nack->detail.clear();
  if (auto* failed = std::get_if<wire::Failed>(&message)) failed->detail.clear();
  if (auto* goodbye = std::get_if<wire::Goodbye>(&message)) goodbye->reason.clear();
}

void DropSentences(wire::DownMessage& message) {
  if (auto* propose = std::get_if<wire::Propose>(&message)) propose->reason.clear();
  if (auto* cancel = std::get_if<wire::Cancel>(&message)) cancel->reason.clear();
}

}  // namespace eplb::explorer
