#include "client/session/query.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/session/channel.h"
#include "placement/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/status.h"

#include "eplb/v1/query.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb {
namespace {

constexpr uint64_t kMaxVersion = uint64_t{1} << 62;  // room to add

absl::StatusOr<int64_t> CheckedVersion(const char* field, uint64_t version) {
  if (version <= kMaxVersion) return static_cast<int64_t>(version);
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", version, ", expected at most ", kMaxVersion));
}

absl::StatusOr<StoredPlacement> FetchFrom(const std::string& endpoint, const wire::TlsFiles& tls,
                                          const std::string& job, absl::Duration timeout) {
  v1::GetPlacementRequest request;
  request.set_job(job);
  v1::GetPlacementResponse response;
  EPLB_RETURN_IF_ERROR(CallDaemon(endpoint, tls, timeout, [&](const auto& channel, auto* context) {
    return v1::Query::NewStub(channel)->GetPlacement(context, request, &response);
  }));
  EPLB_ASSIGN_OR_RETURN(wire::PlacementBody body, wire::FromProto(response.placement()));
  EPLB_ASSIGN_OR_RETURN(const int64_t given,
                        CheckedVersion("next_version", response.next_version()));
  const int64_t next_version = std::max(given, body.version + 1);
  return StoredPlacement{
      .body = std::move(body), .next_version = next_version, .endpoint = endpoint};
}

absl::StatusOr<int64_t> ReserveAt(const std::string& endpoint, const wire::TlsFiles& tls,
                                  const std::string& job, absl::Duration timeout) {
  v1::ReserveVersionRequest request;
  request.set_job(job);
  v1::ReserveVersionResponse response;
  EPLB_RETURN_IF_ERROR(CallDaemon(endpoint, tls, timeout, [&](const auto& channel, auto* context) {
    return v1::Balancer::NewStub(channel)->ReserveVersion(context, request, &response);
  }));
  return CheckedVersion("version", response.version());
}

// The best answer of all daemons, by `better`; without one NotFound, which is an answer too, before
// other errors.
template <class Answer, class Ask, class Better>
absl::StatusOr<Answer> AskAll(const std::vector<std::string>& endpoints, const Ask& ask,
                              const Better& better) {
  absl::StatusOr<Answer> best = absl::InvalidArgumentError("there is no endpoint of a daemon");
  bool first = true;
  for (const std::string& endpoint : endpoints) {
    absl::StatusOr<Answer> answer = ask(endpoint);
    const bool takes = first || (answer.ok() ? !best.ok() || better(*answer, *best)
                                             : !best.ok() && absl::IsNotFound(answer.status()));
    if (takes) best = std::move(answer);
    first = false;
  }
  return best;
}

}  // namespace

absl::StatusOr<StoredPlacement> FetchPlacement(const std::vector<std::string>& endpoints,
                                               const wire::TlsFiles& tls, const std::string& job,
                                               absl::Duration timeout) {
  return AskAll<StoredPlacement>(
      endpoints,
      [&](const std::string& endpoint) { return FetchFrom(endpoint, tls, job, timeout); },
      [](const StoredPlacement& a, const StoredPlacement& b) {
        return a.next_version > b.next_version;
      });
}

absl::StatusOr<int64_t> ReserveVersion(const std::vector<std::string>& endpoints,
                                       const wire::TlsFiles& tls, const std::string& job,
                                       absl::Duration timeout) {
  return AskAll<int64_t>(
      endpoints,
      [&](const std::string& endpoint) { return ReserveAt(endpoint, tls, job, timeout); },
      [](int64_t a, int64_t b) { return a > b; });
}

}  // namespace eplb
