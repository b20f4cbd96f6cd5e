// The PEM files of TLS, as both ends of the wire name and check them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace eplb::wire {

// All three files or none.
struct TlsFiles {
  std::string ca = {};    // authorities that must have signed the other end's certificate
  std::string cert = {};  // own chain, the own certificate first
  std::string key = {};   // private key of the first certificate, without a password
  std::string server_name =
      {};  // a client's: in the daemon's certificate; empty: the endpoint's host

  bool enabled() const { return !ca.empty() || !cert.empty() || !key.empty(); }
};

// A client's files: what is empty comes from EPLB_TLS_CA, EPLB_TLS_CERT, EPLB_TLS_KEY and
// EPLB_TLS_SERVER_NAME.
TlsFiles WithEnvironment(TlsFiles files);

// OK when no file is named. errors: InvalidArgument, one line: a file that is not named, or
// beginning with the file's path: it cannot be read, holds no certificate or key, the key is not
// the certificate's, the certificate has expired.
absl::Status CheckTlsFiles(const TlsFiles& files);

// When the file's first certificate ends. errors: InvalidArgument beginning with the path.
absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path);

}  // namespace eplb::wire
