#!/bin/sh
# Compares every graph's outputs with golden ones on the phone that `adb` sees, times every row of
# calibration-rows.csv there, and pulls the results.
#
#   ./calibration.sh SM8750 QNN-VERSION FOLDER-WITH-LIBRARIES
#
# The folder holds run_model (of LiteRT 2.3 or newer), benchmark_litert_model and the libraries that
# PUSH.md names. `measured` gets golden.csv, which says of each signature whether it computes what
# JAX does, and rows.csv and results, for:
# python -m experiments.calibrate measurements=measured parent=SM8750
set -eu
soc=$1 version=$2 libraries=$3
target=/data/local/tmp/llada_jax/calibration
npu="--use_npu=true --dispatch_library_path=$target --require_full_delegation=true --qualcomm_htp_performance_mode=burst"
status() { adb shell dumpsys thermalservice | tr -d '\r' | sed -n 's/^Thermal Status: *//p' | head -n 1; }
on_phone() { adb shell "cd $target && chmod +x $1 && LD_LIBRARY_PATH=$target ADSP_LIBRARY_PATH=$target ./$*" < /dev/null; }

# The largest error of an output, root mean square, relative to the golden one's own.
error='
  NR == FNR { wanted[$1 " " $2] = $3; next }
  / (In|Out)put buffer [0-9]+:/ { output = / Output/ ? $NF + 0 : "none" }
  NF > 1 && $(NF - 1) ~ /^[0-9]+:$/ { found[output " " $(NF - 1) + 0] = $NF }
  END {
    for (place in wanted) {
      split(place, at)
      if (!(place in found) || found[place] !~ /^[-+]?[0-9]/) { print "nothing"; exit }
      lost[at[1]] += (found[place] - wanted[place]) ^ 2
      size[at[1]] += wanted[place] ^ 2
    }
    for (output in size) { each = sqrt(lost[output] / size[output]); if (each > worst) worst = each }
    print worst + 0
  }'

mkdir -p measured/outputs
adb shell mkdir -p "$target/results"
adb push "$libraries"/. "$target/"
echo graph,signature,error,allowed,close > measured/golden.csv
for golden in golden-*.tar; do
  name=$(basename "${golden#golden-}" .tar) on="--accelerator=npu --dispatch_library_dir=$target"
  case $name in
    shard-*|head) graph=$name.tflite on=--accelerator=cpu ;;
    context-*) graph=context-$soc-${name#context-}.tflite ;;
    *) graph=calibration-$soc-$name.tflite ;;
  esac
  rm -rf golden && mkdir golden && tar -xf "$golden" -C golden
  adb push "$graph" golden "$target/"
  while read -r number signature allowed; do
    log=measured/outputs/$name-$signature.txt
    on_phone run_model --graph="$graph" --signature_index="$number" "$on" \
      --input_dir="golden/$signature" --print_tensors=true --compare_numerical=true \
      --sample_size=64 > "$log" 2>&1 || :
    found=$(awk "$error" "golden/$signature/outputs" "$log")
    close=$(awk -v e="$found" -v a="$allowed" 'BEGIN { print e != "nothing" && e + 0 <= a + 0 ? "yes" : "no" }')
    [ "$close" = yes ] || echo "$name, $signature: error $found against JAX; allowed: $allowed" >&2
    echo "$name,$signature,$found,$allowed,$close" >> measured/golden.csv
  done < golden/signatures
  case $name in shard-*|context-*) adb shell rm "$target/$graph" ;; esac  # the others are timed
  adb shell rm -r "$target/golden"
done
rm -r golden

head -n 1 calibration-rows.csv > measured/rows.csv
tail -n +2 calibration-rows.csv | while IFS=, read -r name file signature rest; do
  case $rest in
    *,npu,*) graph=calibration-$soc-$file.tflite on=$npu ;;
    *) graph=head.tflite on=--use_cpu=true ;;
  esac
  before=$(status)
  on_phone benchmark_litert_model --graph="$graph" --signature_to_run_for="$signature" "$on" \
    --num_runs=50 --warmup_runs=5 --result_file_path="results/$name.pb" ||
    { echo "no time of $name" >&2; continue; }
  after=$(status)
  thermal=$after; [ "$before" -gt "$after" ] && thermal=$before
  echo "$name,$file,$signature,${rest%,*,*},$thermal,$version" >> measured/rows.csv
done
adb pull "$target/results" measured/
