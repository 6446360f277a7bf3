//! Certificates for tests, written by openssl.

use std::path::Path;
use std::process::Command;

fn openssl(dir: &Path, line: &str) {
    let output = Command::new("openssl").args(line.split(' ')).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Writes a certificate authority (`ca.pem`), and the certificates and keys of a server and a client, into a folder.
pub fn certificates(dir: &Path) {
    openssl(dir, "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.pem");
    for name in ["server", "client"] {
        openssl(
            dir,
            &format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"),
        );
        std::fs::write(
            dir.join("ext"),
            "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n",
        )
        .unwrap();
        openssl(
            dir,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out {name}.pem"
            ),
        );
    }
}
