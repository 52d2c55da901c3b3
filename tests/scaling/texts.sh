#!/usr/bin/env bash
# Ten other texts from Debian packages, for anchors and held-out runs: DIR/NAME.jsonl and DIR/NAME_val.jsonl.
set -euo pipefail
out=${1:?a folder}; here=$(cd "$(dirname "$0")" && pwd); mkdir -p "$out"; cd "$out"
apt-get download rust-src libpython3.11-stdlib python3-sympy python3-django perl-modules-5.36 \
  bible-kjv bible-kjv-text manpages-de manpages-fr golang-1.19-src emacs-el manpages-pl vim-runtime
for d in *.deb; do dpkg-deb -x "$d" "x_${d%%_*}"; done
python3 "$here/texts.py"
rm -rf x_* ./*.deb
[ ! -f clean_train.jsonl ] || ln -sf clean_train.jsonl clean.jsonl
