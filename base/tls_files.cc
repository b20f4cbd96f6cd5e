#include "base/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb::wire {
namespace {

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* object) const noexcept {
    (void)Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;

// No terminal to ask for the password of an encrypted key.
int NoPassword(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*context*/) { return 0; }

absl::Status Bad(const std::string& path, std::string_view what) {
  ERR_clear_error();
  return InvalidInput(path, ": ", std::string(what));
}

absl::StatusOr<Bio> Open(const std::string& path) {
  errno = 0;
  Bio file(BIO_new_file(path.c_str(), "r"));
  if (file != nullptr) return file;
  return Bad(path, absl::StrCat("cannot be read: ", std::strerror(errno)));
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const Bio file, Open(path));
  Certificate certificate(PEM_read_bio_X509(file.get(), nullptr, NoPassword, nullptr));
  if (certificate == nullptr) return Bad(path, "holds no certificate in PEM");
  return certificate;
}

absl::StatusOr<Key> ReadKey(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const Bio file, Open(path));
  Key key(PEM_read_bio_PrivateKey(file.get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) return Bad(path, "holds no private key in PEM without a password");
  return key;
}

absl::StatusOr<absl::Time> ExpiryOf(const X509& certificate, const std::string& path) {
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &end) != 1) {
    return Bad(path, "its certificate's expiry date cannot be parsed");
  }
  return absl::FromTM(end, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(path));
  return ExpiryOf(*certificate, path);
}

TlsFiles WithEnvironment(TlsFiles files) {
  const std::pair<const char*, std::string*> variables[] = {
      {"EPLB_TLS_CA", &files.ca},
      {"EPLB_TLS_CERT", &files.cert},
      {"EPLB_TLS_KEY", &files.key},
      {"EPLB_TLS_SERVER_NAME", &files.server_name}};
  for (const auto& [name, field] : variables) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no thread sets it
    if (field->empty() && value != nullptr) *field = value;
  }
  return files;
}

absl::Status CheckTlsFiles(const TlsFiles& files) {
  if (!files.enabled()) return absl::OkStatus();
  const std::pair<const char*, const std::string*> names[] = {
      {"CA file", &files.ca}, {"certificate", &files.cert}, {"key", &files.key}};
  for (const auto& [what, path] : names) {
    if (!path->empty()) continue;
    return InvalidInput("TLS: the ", what, " is not set; TLS needs CA file, certificate and key");
  }
  EPLB_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(files.cert));
  EPLB_ASSIGN_OR_RETURN(const Key key, ReadKey(files.key));
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return Bad(files.key, absl::StrCat("is not the key of ", files.cert));
  }
  EPLB_ASSIGN_OR_RETURN(const absl::Time expiry, ExpiryOf(*certificate, files.cert));
  if (expiry <= absl::Now()) {
    return Bad(files.cert, absl::StrCat("expired at ", absl::FormatTime(absl::RFC3339_sec, expiry,
                                                                        absl::UTCTimeZone())));
  }
  return ReadCertificate(files.ca).status();
}

}  // namespace eplb::wire
