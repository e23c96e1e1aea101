# Completes settings of `python -m experiments.<verb>` in bash: source experiments/completion.bash
_llada_jax() {
  [[ $COMP_LINE == *" -m experiments."* ]] || return
  local words=($COMP_LINE) settings=${COMP_LINE#* -m * }
  local found=$(COMP_LINE="verb $settings" "${words[0]}" -m "${words[2]}" -sc query=bash)
  COMPREPLY=($(compgen -W "$found" -- "${words[COMP_CWORD]}"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _llada_jax python
