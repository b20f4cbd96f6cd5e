#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/fields.h"

namespace eplb::wire {
namespace {

void ProposeToProto(const Propose& propose, v1::Propose* out) {
  out->set_term(static_cast<uint64_t>(propose.term));
  out->set_version(static_cast<uint64_t>(propose.version));
  out->set_base_version(static_cast<uint64_t>(propose.base_version));
  SetDigest(propose.base_digest, out->mutable_base_digest());
  SetDigest(propose.digest, out->mutable_digest());
  for (const LayerPlacement& layer : propose.layers) ToProto(layer, out->add_layers());
  out->set_chunk(static_cast<uint32_t>(propose.chunk));
  out->set_num_chunks(static_cast<uint32_t>(propose.num_chunks));
  out->set_reason(propose.reason);
  out->set_decided_first_step(static_cast<uint64_t>(propose.decided_first_step));
  out->set_decided_last_step(static_cast<uint64_t>(propose.decided_last_step));
  out->set_decision(static_cast<uint64_t>(propose.decision));
  out->set_asked_by(propose.asked_by);
  out->set_policy(propose.policy);
}

absl::StatusOr<DownMessage> ProposeFromProto(const v1::Propose& in) {
  Propose propose;
  EPLB_ASSIGN_OR_RETURN(propose.term, GetCount("term", in.term()));
  EPLB_ASSIGN_OR_RETURN(propose.version, GetCount("version", in.version()));
  EPLB_ASSIGN_OR_RETURN(propose.base_version, GetCount("base_version", in.base_version()));
  EPLB_ASSIGN_OR_RETURN(propose.base_digest, GetDigest("base_digest", in.base_digest()));
  EPLB_ASSIGN_OR_RETURN(propose.digest, GetDigest("digest", in.digest()));
  for (const v1::LayerPlacement& layer : in.layers()) propose.layers.push_back(FromProto(layer));
  EPLB_ASSIGN_OR_RETURN(propose.chunk, GetSmall("chunk", in.chunk()));
  EPLB_ASSIGN_OR_RETURN(propose.num_chunks, GetSmall("num_chunks", in.num_chunks()));
  propose.reason = in.reason();
  EPLB_ASSIGN_OR_RETURN(propose.decided_first_step,
                        GetCount("decided_first_step", in.decided_first_step()));
  EPLB_ASSIGN_OR_RETURN(propose.decided_last_step,
                        GetCount("decided_last_step", in.decided_last_step()));
  EPLB_ASSIGN_OR_RETURN(propose.decision, GetCount("decision", in.decision()));
  propose.asked_by = in.asked_by();
  propose.policy = in.policy();
  return propose;
}

absl::StatusOr<DownMessage> WelcomeFromProto(const v1::Welcome& in) {
  Welcome welcome;
  EPLB_ASSIGN_OR_RETURN(welcome.term, GetCount("term", in.term()));
  welcome.server_version = in.server_version();
  welcome.waits = in.waits();
  return welcome;
}

absl::StatusOr<DownMessage> RetractFromProto(const v1::Retract& in) {
  Retract retract;
  EPLB_ASSIGN_OR_RETURN(retract.version, GetCount("version", in.version()));
  retract.reason = in.reason();
  return retract;
}

}  // namespace

void ToProto(const DownMessage& message, v1::Down* out) {
  std::visit(
      Overloaded{[&](const Welcome& m) {
                   out->mutable_welcome()->set_term(static_cast<uint64_t>(m.term));
                   out->mutable_welcome()->set_server_version(m.server_version);
                   out->mutable_welcome()->set_waits(m.waits);
                 },
                 [&](const Propose& m) { ProposeToProto(m, out->mutable_propose()); },
                 [&](const Retract& m) {
                   out->mutable_retract()->set_version(static_cast<uint64_t>(m.version));
                   out->mutable_retract()->set_reason(m.reason);
                 },
                 [&](const Pace& m) {
                   out->mutable_pace()->set_report_every(static_cast<uint32_t>(m.report_every));
                   out->mutable_pace()->set_from_step(static_cast<uint64_t>(m.from_step));
                 },
                 [&](const NeedPlacement& m) {
                   SetDigest(m.digest, out->mutable_need_placement()->mutable_digest());
                 },
                 [&](const Drain& m) {
                   out->mutable_drain()->set_grace_ms(static_cast<uint32_t>(m.grace_ms));
                 },
                 [&](const Keep& m) {
                   out->mutable_keep()->set_launch(static_cast<uint64_t>(m.launch));
                   ToProto(m.memory, out->mutable_keep()->mutable_memory());
                 }},
      message);
}

absl::StatusOr<DownMessage> FromProto(const v1::Down& message) {
  switch (message.message_case()) {
    case v1::Down::kWelcome:
      return WelcomeFromProto(message.welcome());
    case v1::Down::kPropose:
      return ProposeFromProto(message.propose());
    case v1::Down::kRetract:
      return RetractFromProto(message.retract());
    case v1::Down::kPace: {
      EPLB_ASSIGN_OR_RETURN(const int32_t every,
                            GetSmall("report_every", message.pace().report_every()));
      EPLB_ASSIGN_OR_RETURN(const int64_t from_step,
                            GetCount("from_step", message.pace().from_step()));
      return Pace{every, from_step};
    }
    case v1::Down::kNeedPlacement: {
      EPLB_ASSIGN_OR_RETURN(const Digest digest,
                            GetDigest("digest", message.need_placement().digest()));
      return NeedPlacement{digest};
    }
    case v1::Down::kDrain: {
      EPLB_ASSIGN_OR_RETURN(const int32_t grace, GetSmall("grace_ms", message.drain().grace_ms()));
      return Drain{grace};
    }
    case v1::Down::kKeep: {
      EPLB_ASSIGN_OR_RETURN(const int64_t launch, GetCount("launch", message.keep().launch()));
      return Keep{launch, CarriedFromBytes(message.keep().memory())};
    }
    case v1::Down::MESSAGE_NOT_SET:
      break;
  }
  return NoKnownKind(message);
}

}  // namespace eplb::wire
