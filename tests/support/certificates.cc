#include "tests/support/certificates.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdlib>
#include <random>

namespace eplb {
namespace {

constexpr long kDay = 24L * 3600;

struct FreeAll {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
};
using Key = std::unique_ptr<EVP_PKEY, FreeAll>;
using Certificate = std::unique_ptr<X509, FreeAll>;
using Bio = std::unique_ptr<BIO, FreeAll>;

// A test cannot go on without its certificates.
void Must(bool done) {
  if (!done) std::abort();
}

std::string Text(const Bio& bio) {
  const char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &bytes);  // NOLINT: OpenSSL's macro casts
  return {bytes, static_cast<size_t>(size)};
}

std::string PemOf(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  Must(PEM_write_bio_X509(bio.get(), certificate) == 1);
  return Text(bio);
}

std::string PemOf(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  Must(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  return Text(bio);
}

void AddExtension(X509* certificate, int kind, const std::string& value) {
  const std::unique_ptr<X509_EXTENSION, FreeAll> extension(
      X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str()));
  Must(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1);
}

Certificate Blank(EVP_PKEY* key, const char* name, long serial, int days) {
  Certificate certificate(X509_new());
  Must(X509_set_version(certificate.get(), 2) == 1);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3 * kDay);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), days * kDay);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  Must(X509_set_pubkey(certificate.get(), key) == 1);
  return certificate;
}

}  // namespace

struct TestAuthority::Parts {
  Key key{EVP_EC_gen("P-256")};
  Certificate certificate;
  long serial = static_cast<long>(std::random_device()());
};

TestAuthority::TestAuthority() : parts_(std::make_unique<Parts>()) {
  // Two authorities of one name are one to who looks up a certificate's issuer.
  const std::string name = "test authority " + std::to_string(parts_->serial);
  parts_->certificate = Blank(parts_->key.get(), name.c_str(), parts_->serial, 2);
  X509* own = parts_->certificate.get();
  Must(X509_set_issuer_name(own, X509_get_subject_name(own)) == 1);
  AddExtension(own, NID_basic_constraints, "critical,CA:TRUE");
  Must(X509_sign(own, parts_->key.get(), EVP_sha256()) > 0);
  pem_ = PemOf(own);
}

TestAuthority::~TestAuthority() = default;
TestAuthority::TestAuthority(TestAuthority&&) noexcept = default;

IssuedCertificate TestAuthority::Issue(const std::string& names, int days) {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate = Blank(key.get(), "test peer", ++parts_->serial, days);
  Must(X509_set_issuer_name(certificate.get(), X509_get_subject_name(parts_->certificate.get())) ==
       1);
  if (!names.empty()) AddExtension(certificate.get(), NID_subject_alt_name, names);
  Must(X509_sign(certificate.get(), parts_->key.get(), EVP_sha256()) > 0);
  return {.cert = PemOf(certificate.get()), .key = PemOf(key.get())};
}

}  // namespace eplb
