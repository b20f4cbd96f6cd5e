// Asks every daemon of the list and chooses among the answers.
#include "client/session/unary_calls.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/session/channel.h"
#include "proto/wire/convert.h"
#include "proto/wire/status.h"

#include "eplb/v1/query.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb {
namespace {

constexpr uint64_t kMaxVersion = uint64_t{1} << 62;  // sums still fit into int64

absl::StatusOr<int64_t> CheckedVersion(const char* field, uint64_t version) {
  if (version <= kMaxVersion) return static_cast<int64_t>(version);
  return InvalidInput(field, " is ", version, ", expected at most ", kMaxVersion);
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

// Returns the best answer of all daemons, by `better`. If there is none, NotFound, which is an
// answer too, precedes a standby's refusal, which precedes other errors.
template <class Answer, class Ask, class Better>
absl::StatusOr<Answer> AskEach(const std::vector<std::string>& endpoints, const Ask& ask,
                               const Better& better) {
  absl::StatusOr<Answer> best = InvalidInput("there is no endpoint of a daemon");
  bool first = true;
  for (const std::string& endpoint : endpoints) {
    absl::StatusOr<Answer> answer = ask(endpoint);
    const bool known = best.ok() || absl::IsNotFound(best.status());
    const bool takes =
        first || (answer.ok() ? !best.ok() || better(*answer, *best)
                              : !known && (absl::IsNotFound(answer.status()) ||
                                           wire::LeaderIn(answer.status()).has_value()));
    if (takes) best = std::move(answer);
    first = false;
  }
  return best;
}

// Asks each daemon for `timeout`, see AskEach. If all that answer stand by, one of them is about to
// lead, so they are asked again for twice that time. A daemon that does not answer delays no round.
template <class Answer, class Ask, class Better>
absl::StatusOr<Answer> AskAll(const std::vector<std::string>& endpoints, absl::Duration timeout,
                              const Ask& ask, const Better& better) {
  constexpr absl::Duration kBetweenRounds = absl::Milliseconds(200);
  constexpr absl::Duration kBesideStandbys = absl::Seconds(1);
  const absl::Time deadline = MonotonicNow() + 2 * timeout;
  bool elects = false;  // true if these daemons elect their leader
  const auto one = [&](const std::string& endpoint) {
    absl::StatusOr<Answer> answer =
        ask(endpoint, elects ? std::min(timeout, kBesideStandbys) : timeout);
    elects = elects || wire::LeaderIn(answer.status()).has_value();
    return answer;
  };
  while (true) {
    absl::StatusOr<Answer> best = AskEach<Answer>(endpoints, one, better);
    if (!wire::LeaderIn(best.status()) || MonotonicNow() + kBetweenRounds > deadline) return best;
    absl::SleepFor(kBetweenRounds);
  }
}

}  // namespace

absl::StatusOr<StoredPlacement> FetchPlacement(const std::vector<std::string>& endpoints,
                                               const wire::TlsFiles& tls, const std::string& job,
                                               absl::Duration timeout) {
  return AskAll<StoredPlacement>(
      endpoints, timeout,
      [&](const std::string& endpoint, absl::Duration limit) {
        return FetchFrom(endpoint, tls, job, limit);
      },
      [](const StoredPlacement& a, const StoredPlacement& b) {
        return a.next_version > b.next_version;
      });
}

absl::StatusOr<int64_t> ReserveVersion(const std::vector<std::string>& endpoints,
                                       const wire::TlsFiles& tls, const std::string& job,
                                       absl::Duration timeout) {
  return AskAll<int64_t>(
      endpoints, timeout,
      [&](const std::string& endpoint, absl::Duration limit) {
        return ReserveAt(endpoint, tls, job, limit);
      },
      [](int64_t a, int64_t b) { return a > b; });
}

}  // namespace eplb
